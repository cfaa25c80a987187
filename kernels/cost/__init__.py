"""Traffic and FLOP accounting of the linear-attention kernels: `python -m kernels.cost`.

accounting.py   a shape, a kernel, what it moves and computes
ours.py         our kernels, one row each              plan.py      their tiles, chunks and blocks
published.py    the published ones                     fewest.py    the least that any could do
ours_delta.py   our kernels of the delta rule          published_delta.py   the published ones
devices.py      peaks, and the floor in seconds        __main__.py  the command

docs/cost.md explains the counts and holds the command's output.
"""
