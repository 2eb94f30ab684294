"""The pages under docs/ that a browser shows: index.html, tour.html, xray.html, comparison.html,
real.html.

    python -m docs.make_pages        from docs/tour.ipynb, and where they are there from runs/demo
                                     (make demo), runs/compare (make compare), runs/real (make real)

They need no build step and no server: relative links, no script.
"""

import re
import shutil
from pathlib import Path

from docs.tour import read_notebook
from minvenus.files import write_text
from minvenus.report.page import Content, Html, el, figure, page
from minvenus.report.xray import write_page

DOCS = Path(__file__).parent
GROUP = "2"                           # of the demo's first batch: two rollouts right, two wrong
INLINE = re.compile(r"`([^`]+)`|\[([^\]]+)\]\(([^)]+)\)|\*\*([^*]+)\*\*|([^`\[*]+|.)", re.DOTALL)
LINKS = [
    ("tour.html", "The tour", "A real group of rollouts, from text to loss, in 30 minutes."),
    ("xray.html", "X-ray", "A group of the demo: every number with its formula."),
    ("comparison.html", "The comparison", "GRPO and four recipes of IGPO, with curves."),
    ("real.html", "X-ray of a real model", "SmolLM2 reads The World Factbook: one group."),
    ("equations.md", "Equations", "Every formula, with a link to its lines and to its tests."),
    ("recipes.md", "Recipes", "Every switch, with a number worked by hand."),
    ("conformance/README.md", "Conformance vectors", "Cases that test another implementation."),
    ("experiment.md", "Experiments", "What was measured, and what it does not show."),
    ("faq.md", "Questions and answers", "Each with the test that holds it."),
]


def main() -> None:
    write_text(DOCS / "index.html", index_page())
    write_text(DOCS / "tour.html", tour_page(read_notebook()))
    batch = Path("runs/demo/igpo/rollouts/step-00000001.jsonl")
    if batch.is_file():
        write_page(str(batch), DOCS / "xray.html", group=GROUP)
    for made, name in (("compare/report", "comparison"), ("real/xray", "real")):
        made_page = Path("runs") / f"{made}.html"
        if made_page.is_file():
            shutil.copy(made_page, DOCS / f"{name}.html")


def index_page() -> str:
    rows = []
    for target, name, words in LINKS:
        rows.append(el("p", el("a", name, href=target), f": {words}"))
    lede = "The reference implementation of DR-Venus and IGPO, in plain PyTorch."
    return page("minvenus", [el("section", rows)], lede, [], "documentation")


def tour_page(notebook: dict) -> str:
    """The cells of the notebook, with their outputs, as one page."""
    title, *cells = notebook["cells"]
    heading, lede, *rest = "".join(title["source"]).split("\n\n")
    parts: list[Content] = [paragraph(text) for text in rest]
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts += [paragraph(text) for text in source.split("\n\n")]
            continue
        parts.append(el("pre", el("code", source)))
        for output in cell["outputs"]:
            if "text" in output:
                parts.append(el("pre", "".join(output["text"])))
            else:
                parts.append(figure(Html(output["data"]["image/svg+xml"])))
    words = re.sub(INLINE, lambda part: "".join(part[n] or "" for n in (1, 2, 4, 5)), lede)
    return page(heading.removeprefix("# "), parts, words, [], "tour")


def paragraph(text: str) -> Html:
    """A block of the little Markdown that the notebook uses."""
    if text.startswith("## "):
        return el("h2", text.removeprefix("## "))
    pieces: list[Content] = []
    for code, link, target, strong, words in INLINE.findall(text):
        if code:
            pieces.append(el("code", code))
        elif link:
            pieces.append(el("a", link, href=target))
        elif strong:
            pieces.append(el("strong", strong))
        else:
            pieces.append(words)
    return el("p", pieces)


if __name__ == "__main__":
    main()
