"""A fuzzer for one claim: the same weights whatever the workers, the split and the failures.

    draw ─▶ case ─▶ run every configuration ─▶ compare with the reference ─▶ shrink what differs

`python -m holdfast_bench.exactness --seeds N` draws training jobs at random, runs each in other
worlds, with uneven plans, kills and a stop, and demands one hash of the weights for all of them.
The modules `task`, `models`, `optimizers`, `datasets` and `kills` run in workers only; the others
import no torch.
"""
