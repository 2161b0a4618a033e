"""Every kernel on one NVIDIA GPU: time, floor, gap, memory; and what choosing costs.

`bench/device.sh` builds, tests and then runs this; `python -m bench.device [--dry] [--out FOLDER]`
writes FOLDER/device-<card>.md alone, row by row, so that a run that is cut off leaves what it has.
`--dry` goes the same way on CPU tensors of tiny sizes: it proves that the script runs, its times
mean nothing.

Floors are what this card can reach, measured here: bytes over the bandwidth of a copy, flops over
the rate of a large bfloat16 product, and never less than one trivial operator takes under the same
clock. What runs on one multiprocessor has the float64 rate of one. "Share" is floor / time.
"""
