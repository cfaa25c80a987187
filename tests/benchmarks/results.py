"""Results of a run as the benchmark writes them, with times that follow simple laws."""

from dataclasses import asdict

from benchmarks.kernel_cases import case


def entry(op, length, width, library, direction, milliseconds, packed=False) -> dict:
    return {
        **asdict(case(op, length, width, packed)),
        "library": library,
        "direction": direction,
        "milliseconds": milliseconds,
    }


def results() -> dict:
    """Braid 1 and 4 ms, FLA twice that, softmax attention as the length; RetNet D=256 1 and 7."""
    times = []
    for op in ("gla", "retnet"):
        for length in (2048, 16384, 65536):
            for direction, unit in (("forward", 1.0), ("training", 4.0)):
                of_case = {"Braid": unit, "FLA": 2 * unit, "flash": unit * length / 4096}
                of_case["cudnn"] = of_case["flash"] / 2
                for library, median in of_case.items():
                    repeats = [median, median * 3, median / 2]
                    times.append(entry(op, length, 128, library, direction, repeats))
    times.append(entry("gla", 16384, 128, "Braid", "training", [5.0], packed=True))
    times.append(entry("gla", 16384, 128, "varlen", "training", [2.5], packed=True))
    times.append(entry("retnet", 16384, 256, "Braid", "forward", [1.0]))
    times.append(entry("retnet", 16384, 256, "Braid", "training", [7.0]))
    memory = [
        {"op": "retnet", "library": library, "direction": "training", "bytes": size << 20}
        for library, size in (("Braid", 100), ("FLA", 400))
    ]
    return {
        "machine": {"gpu": "Some GPU", "versions": {"torch": "2.13", "triton": "3.7"}},
        "first_steps": [{"library": "Braid", "op": "gla", "seconds": 12.5}],
        "times": times,
        "memory": memory,
        "notes": ["cudnn, gla T=64 D=256: not timed, no available kernel"],
    }
