"""MXNet's arm of benchmarks/step.py: resnet50_v1 of Gluon's model zoo, hybridised, with oneDNN.

The model zoo has no v1.5: this network has its strides on the 1x1 convolutions, hence 6 % fewer FLOPs, and biases on
most of them.
"""

import itertools
import math

import mxnet as mx
from mxnet import autograd, gluon
from steps import MOMENTUM, RATE, SMOOTHING, WEIGHT_DECAY, count_flops, make_batches, read_job, serve


def main() -> None:
    job = read_job()
    if job["precision"] == "bf16":
        from mxnet.contrib import amp

        amp.init("bfloat16")  # before the network is created
    network = gluon.model_zoo.vision.resnet50_v1(classes=job["classes"])
    network.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2))
    layers = list_layers(network, job["size"])
    network.hybridize(static_alloc=True, static_shape=True)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)
    loss_of.hybridize(static_alloc=True, static_shape=True)
    settings = {"learning_rate": RATE, "momentum": MOMENTUM, "wd": WEIGHT_DECAY}
    trainer = gluon.Trainer(network.collect_params(), "sgd", settings, kvstore=None)
    off = SMOOTHING / job["classes"]
    batches = itertools.cycle(
        [
            (
                mx.nd.array(images.transpose(0, 3, 1, 2)),
                mx.nd.one_hot(mx.nd.array(labels), job["classes"], on_value=1 - SMOOTHING + off, off_value=off),
            )
            for images, labels in make_batches(job)
        ]
    )

    def run_step() -> float:
        images, targets = next(batches)
        with autograd.record():
            loss = loss_of(network(images), targets)
        loss.backward()
        trainer.step(job["batch"])
        value = float(loss.mean().asscalar())
        mx.nd.waitall()  # the update may still be running
        return value

    serve(f"MXNet {mx.__version__}, resnet50_v1", count_flops(layers), run_step)


def list_layers(network, size) -> list:
    """Return (number of weights, number of output positions) of each convolution and dense layer."""
    layers = []

    def note(block, _, output) -> None:
        layers.append((math.prod(block.weight.shape), math.prod(output.shape[2:])))

    def watch(block) -> None:
        if isinstance(block, (gluon.nn.Conv2D, gluon.nn.Dense)):
            handles.append(block.register_forward_hook(note))

    handles = []
    network.apply(watch)
    network(mx.nd.zeros((1, 3, size, size))).wait_to_read()
    for handle in handles:
        handle.detach()
    return layers


main()
