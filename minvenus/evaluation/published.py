"""Published accuracies (%) of DR-Venus and its neighbours, for orientation beside a result. Data only.

Other judges, tools and dates stood behind these numbers than behind yours. Of the Pass@K curves, which were read off a figure,
every value with K >= 2 is a multiple of 1/300 (BrowseComp) or 1/289 (BrowseComp-ZH): they look like pass_any of the first K runs,
BrowseComp on a part of 300 questions. The xBench and GAIA numbers look like avg@3. None = not reported.
"""

BENCHMARKS = ("BrowseComp", "BrowseComp-ZH", "GAIA", "xBench-DS-2505", "xBench-DS-2510", "DeepSearchQA")

ACCURACY: dict[str, tuple[float | None, ...]] = {          # model -> one number per benchmark
    "DeepDive-9B-SFT": (5.6, 15.7, None, 35.0, None, None),
    "DeepDive-9B-RL": (6.3, 15.1, None, 38.0, None, None),
    "WebSailor-7B": (6.7, 14.2, 37.9, 34.3, None, None),
    "OffSeeker-8B-SFT": (10.6, 24.2, 47.6, 48.0, None, None),
    "OffSeeker-8B-DPO": (12.8, 26.6, 51.5, 49.0, None, None),
    "WebExplorer-8B-RL": (15.7, 32.0, 50.0, 53.7, 23.0, 17.8),
    "AgentCPM-Explore-4B": (24.1, 29.1, 63.9, 70.0, 34.0, 32.8),
    "DR-Venus-4B-SFT": (26.8, 35.7, 65.4, 69.0, 35.3, 37.7),
    "DR-Venus-4B-RL": (29.1, 37.7, 64.4, 74.7, 40.7, 39.6),
}

KS = (1, 2, 4, 8, 16)

PASS_AT_K: dict[tuple[str, str], tuple[float, ...]] = {    # benchmark, model -> one number per K
    ("BrowseComp", "DR-Venus-4B-SFT"): (26.8, 37.7, 47.3, 55.3, 61.7),
    ("BrowseComp", "DR-Venus-4B-RL"): (29.1, 39.3, 49.3, 58.7, 63.7),
    ("BrowseComp-ZH", "DR-Venus-4B-SFT"): (35.7, 52.9, 65.7, 74.0, 78.5),
    ("BrowseComp-ZH", "DR-Venus-4B-RL"): (37.7, 53.3, 64.4, 73.0, 76.5),
}


def published_table() -> str:
    """The accuracies as lines of text."""
    width = max(map(len, ACCURACY))
    lines = [" " * width + "".join(f"  {name}" for name in BENCHMARKS)]
    for model, numbers in ACCURACY.items():
        cells = ("–" if number is None else f"{number:.1f}" for number in numbers)
        lines.append(f"{model:{width}}" + "".join(f"  {cell:>{len(name)}}" for name, cell in zip(BENCHMARKS, cells, strict=True)))
    return "\n".join(lines)
