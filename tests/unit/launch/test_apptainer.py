"""A rank's command in an image."""

from pathlib import Path

from trainstone.launch.apptainer import wrap_command


def test_a_command_in_an_image_sees_each_folder_once():
    binds = [Path("/data/sets"), Path("/home/me"), Path("/home/me/runs"), Path("/data/sets")]
    assert wrap_command(["python3", "x"], "my image.sif", binds, gpus=True) == [
        *("apptainer", "exec", "--nv", "--bind", "/data/sets", "--bind", "/home/me", "my image.sif", "python3", "x")
    ]


def test_without_devices_no_driver_is_brought_in():
    assert "--nv" not in wrap_command(["x"], "i.sif", [], gpus=False, program="singularity")
