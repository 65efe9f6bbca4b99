"""Read tars with the package webdataset. Run with the Python of the environment webdataset; jobs are on stdin:

{name: [path]}   answer {name: [{__key__, extension: sha256}]}, in the order of the files
"""

import hashlib
import json
import sys

import webdataset


def read(paths):
    samples = webdataset.WebDataset(paths, shardshuffle=False)
    return [
        {
            "__key__": sample["__key__"],
            **{e: hashlib.sha256(data).hexdigest() for e, data in sample.items() if not e.startswith("__")},
        }
        for sample in samples
    ]


def main():
    print(json.dumps({name: read(paths) for name, paths in json.load(sys.stdin).items()}))


main()
