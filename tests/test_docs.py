"""README and docs/ agree with the code and with what runs printed. `make docs-check` runs their
commands, too."""

import argparse
import json
import re
import shlex
from dataclasses import fields

import pytest

from minvenus.config import ConfigError
from minvenus.experiments.__main__ import main as experiment
from minvenus.experiments.calculator import CreditConfig, main
from minvenus.flags import add_flags, parse_flags
from minvenus.igpo.recipes import RECIPES, Recipe
from minvenus.sft.__main__ import CleanConfig
from tests import docs
from tests.docs import PAGES, RESULTS, ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def printed(name: str) -> list[str]:
    return (RESULTS / name).read_text(encoding="utf-8").splitlines()


def test_the_readme_is_short_and_its_pictures_are_small():
    prose = re.sub(r"^(    .*|\|.*)$", "", README, flags=re.MULTILINE)  # no code, no tables
    assert len(prose.split()) <= 1500
    pictures = re.findall(r"docs/pictures/[\w.-]+", README)
    assert len(pictures) >= 3 and all((ROOT / name).stat().st_size < 300_000 for name in pictures)


def test_the_code_that_the_page_shows_of_the_example_with_trl_is_the_example():
    page = (ROOT / "docs" / "integration.md").read_text(encoding="utf-8")
    code = (ROOT / "docs" / "trl_credit.py").read_text(encoding="utf-8")
    for name in ("class IGPOTrainer", "class Rollouts"):
        shown = re.search(rf"^    {name}.*\n(?:(?:     .*)?\n)*", page, re.MULTILINE)
        assert re.sub(r"^    ", "", shown[0], flags=re.MULTILINE).strip() in code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere_and_those_to_a_line_to_the_function_that_they_name(page):
    for words, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        file, _, line = target.partition("#L")
        path = page.parent / file.partition("#")[0]
        assert path.exists(), target
        if line:
            assert int(line) == docs.line_of(path, words.strip("`")), "python -m tests.docs --links"


def test_every_picture_that_is_shown_is_there_and_every_one_that_is_there_is_shown():
    shown = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r'(?:src|srcset)="([^"]+)"|!\[[^\]]*\]\(([^)]+)\)', text):
            shown.add((page.parent / "".join(target)).resolve())
    assert shown == set((ROOT / "docs" / "pictures").iterdir())


def test_every_command_of_the_documents_has_a_target_a_script_and_flags_that_exist():
    commands = docs.commands()
    assert len(commands) > 30
    assert set(docs.RUN) <= set(commands), "what is run is no longer in a document"
    for command in commands:
        assert docs.check(command)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("make demos", "no demos"),
        ("python train_sft.py --stepz 3", "--steps"),
        ("python -m minvenus.nothing", "no module"),
        ("torchrun --nproc-per-node 8 train_igpo.py --group 1", "group"),
        ("python -m pytest tests/nothing", "there is no"),
        ("python -m minvenus.experiments lab --gains steep", "gains"),
        ("python eval.py --judges", "--judge"),
    ],
)
def test_a_command_that_does_not_exist_is_told_apart(command, reason):
    with pytest.raises(ConfigError, match=reason):
        docs.check(command)


def test_what_the_readme_shows_of_a_command_is_what_it_printed_in_that_order():
    files = {printed(path.name)[0]: path.name for path in RESULTS.glob("*.txt")}
    text = README.replace(".venv/bin/", "")
    blocks = re.findall(r"^    (\$ .*)\n((?:    [^$].*\n)+)", text, re.MULTILINE)
    assert len(blocks) == 5
    for command, shown in blocks:
        rest = iter(printed(files[command]))
        for line in shown.splitlines():
            place = f"{command} did not print {line!r} there"
            assert line.strip() == "..." or line[4:] in rest, place


@pytest.mark.parametrize("name", ["credit.txt", "lab.txt"])
def test_the_output_of_a_quick_command_is_still_what_is_stored(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command, *lines = printed(name)
    experiment(shlex.split(command.partition(docs.EXPERIMENTS)[2]))
    assert capsys.readouterr().out.splitlines() == lines


def numbers_of_table(section: str, tmp_path) -> dict[str, tuple[list[str], list[dict]]]:
    """Of a section of recipes.md with rollouts and a table: a row's flags -> the numbers that it
    shows, and the rollouts' credit by the calculator."""
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    _, text = text.split(f"\n## {section}\n")
    text = text.split("\n## ")[0]
    file = tmp_path / "rewards.jsonl"
    file.write_text("\n".join(re.findall(r"^    (\{.*\})$", text, re.MULTILINE)))
    rows = re.findall(r"^\| `(--[^`]+)` \| ([+-].*) \|$", text, re.MULTILINE)
    numbers = {}
    for flags, shown in rows:
        config = parse_flags(CreditConfig, ["--file", str(file), "--json", *flags.split()])
        numbers[flags] = shown.split(" | "), json.loads(main(config))
    assert len(numbers) == len(rows)
    return numbers


def test_the_table_of_the_recipes_has_every_field_and_the_numbers_of_the_calculator(tmp_path):
    table = numbers_of_table("Every field on one batch", tmp_path)
    for flags, (shown, rollouts) in table.items():
        assert [f"{a:+.2f}" for a in rollouts[0]["advantages"]] == shown, flags
    assert len({*(tuple(shown) for shown, _ in table.values())}) == len(table), (
        "a field changes nothing"
    )
    named = {name.replace("-", "_") for name in re.findall(r"--(?:no-)?([\w-]+)", " ".join(table))}
    asked = {"newlines_after_think", "lead_in"}  # how the model is asked: no arithmetic
    names = {field.name for field in fields(Recipe)}
    assert named - {"recipe"} == names - asked
    assert {f"--recipe {name}" for name in RECIPES} <= set(table)
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in names)


def test_the_table_of_equal_gains_has_the_numbers_of_the_calculator(tmp_path):
    table = numbers_of_table("Equal gains: who explodes, who is silenced", tmp_path)
    largest = {}
    for flags, (shown, rollouts) in table.items():
        visits = [rollout["advantages"][1] for rollout in rollouts]
        assert [f"{a:+.2f}" for a in visits] == shown, flags
        largest[flags] = max(map(abs, visits))
    exploding = [flags for flags in largest if largest[flags] > 100]
    assert exploding == ["--recipe raw_ig"]
    scale = table["--recipe uncentred --spread std"][1][0]["scale"]
    assert f"(the factor is {scale:.4f})".replace("0.", ".") in " ".join(
        (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").split()
    )
    assert {f"--recipe {name}" for name in RECIPES} <= set(table)


def test_every_answer_to_a_frequent_question_names_a_test():
    text = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    _, *answers = re.split(r"^\*\*", text, flags=re.MULTILINE)
    assert len(answers) >= 12
    for answer in answers:  # that the tests exist: tests/test_ledger.py
        assert re.search(r"`test_\w+`", answer), answer


def test_every_flag_that_a_document_names_exists():
    # Of torchrun, of tests/docs.py and tests/mutants/run.py, and --config of every script.
    known = {"--nproc-per-node", "--shutdown-timeout", "--config"} | {
        "--write",
        "--links",
        "--check",
    }
    scripts = [config for config, _ in docs.SCRIPTS.values()]
    for config in [CleanConfig, *scripts, *docs.COMMANDS.values()]:
        parser = argparse.ArgumentParser()
        add_flags(parser, parser, config)
        known |= {flag for action in parser._actions for flag in action.option_strings}
    for page in PAGES:
        named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", page.read_text(encoding="utf-8")))
        assert named <= known, f"{page.name}: {named - known}"


def test_the_table_of_before_and_after_has_the_numbers_of_the_demo():
    cell = r"(\d+) \[(\d+), (\d+)\]"
    table = re.findall(rf"^\| (\d) hops? \| {cell} \| {cell} \|$", README, re.MULTILINE)
    share = r"([\d.]+) % \[([\d.]+), ([\d.]+)\] of \d+"
    text = "\n".join(printed("demo.txt"))
    expected = []
    for hops, *numbers in re.findall(rf"^  (\d)-hop +{share} +{share}$", text, re.MULTILINE):
        expected.append((hops, *(f"{float(x):.0f}" for x in numbers)))
    assert len(table) == 4 and table == expected


def table_of(name: str, title: str) -> dict[str, list[str]]:
    """Method -> cells of a stored table, whose title begins so; numbers as the documents write
    them."""
    lines = printed(name)
    [start] = [i for i, line in enumerate(lines) if line.startswith(title)]
    rows = {}
    for line in lines[start + 2 : lines.index("", start)]:
        method, *cells = re.split(r"  +", line)
        rows[method] = [re.sub(r"(?<![.\d])0(?=\.)", "", cell) for cell in cells]
    return rows


def test_the_table_of_methods_has_the_numbers_of_the_comparison():
    means = table_of("comparison.txt", "Mean over runs")
    tested = table_of("comparison.txt", "Minus grpo")
    assert f"(accuracy of the starts {means['grpo'][0].split()[0]})" in README
    expected = []
    for method, (_, accuracy, area, *_, failed, _, _) in means.items():
        minus_grpo = tested[method][0] if method in tested else ""
        expected.append([f"`{method}`", accuracy, minus_grpo, area, failed])
    rows = re.findall(r"^\| (`(?:grpo|[a-z_/ ]+ - penalty)` .*) \|$", README, re.MULTILINE)
    assert [[cell.strip() for cell in row.split("|")] for row in rows] == expected


def test_the_page_of_the_experiment_has_the_numbers_of_the_comparison():
    page = (ROOT / "docs" / "experiment.md").read_text(encoding="utf-8").replace("**", "")
    page = page.replace("−", "-")
    for method, (_, accuracy, area, pages, *_, failed, _, _) in table_of(
        "comparison.txt", "Mean over runs"
    ).items():
        shown = f"| `{method}` | {accuracy} | {area} | {pages.split()[0]} | {failed} |"
        assert shown in page
    for method, (accuracy, p, holm, area, *_) in table_of("comparison.txt", "Minus grpo").items():
        [row] = [
            line
            for line in page.splitlines()
            if line.startswith(f"| `{method}` | +") or line.startswith(f"| `{method}` | -")
        ]
        assert f"| {accuracy} | {float(p):.3f} | {float(holm):.3f} |".replace("0.", ".") in row
        assert f"| {area} |" in row


def test_the_tables_of_the_real_model_have_the_numbers_of_its_runs():
    experiment = (ROOT / "docs" / "experiment.md").read_text(encoding="utf-8").replace("−", "-")
    readme = README.replace("−", "-")
    for line in printed("real.txt")[3:7]:
        name, accuracy, *cells = re.split(r"\s{2,}", line)
        shares = [cell.removesuffix(" %") for cell in cells if "[" not in cell]
        minus_sft = cells[-1] if "[" in cells[-1] else ""
        rows = [accuracy.split(" of ")[0].replace(" %", ""), *shares, minus_sft]
        method = name.removesuffix("-1").replace("-without-", " - ")
        first = "SFT" if name == "sft" else f"then `{method}`"
        assert f"| {' | '.join([first, *rows])} |".replace("|  |", "| |") in experiment
        del rows[-2]  # malformed turns
        assert f"| {' | '.join([first, *rows])} |".replace("|  |", "| |") in readme


def test_what_is_reached_where_only_the_last_page_has_the_answer_is_what_those_runs_printed():
    means = table_of("last.txt", "Mean over runs")
    page = (ROOT / "docs" / "experiment.md").read_text(encoding="utf-8")
    for method, (_, accuracy, area, *_, failed, collapsed, _) in means.items():
        assert f"| `{method}` | {accuracy} | {area} | {failed} | {collapsed} |" in page
    reached = {method: cells[1] for method, cells in means.items()}
    sentence = (
        f"`grpo` has {reached['grpo']}, `paper - penalty` {reached['paper - penalty']} and "
        f"`uncentred - penalty` {reached['uncentred - penalty']}"
    )
    assert sentence in " ".join(README.split())
