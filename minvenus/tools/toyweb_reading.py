"""Texts from which a base model learns to read: generated pages, then the same facts again, which can only be looked up above.

    page Bob cat, boss Eva, friend Ida. / page Eva owl.      pages as the toy web shows them, of any names
    page Eva owl. / page Bob cat, friend Ida, boss Eva.      the pages again in another order, their links too

They are for the time before demonstrations, so that those meet a model that can look things up. The names are those of both
splits, as a base model has seen every word; no fact here is a fact of any question. Knows no tokens: a text
comes as pieces, each with a flag: only flagged pieces follow from what stands above, so only they are worth a loss.
"""

import random

from minvenus.text.toy_words import NAMES, PETS, RELATIONS

Piece = tuple[str, bool]
MOST_LINKS = 3


def reading(seed: int, index: int, pages: int = 6, again: int = 2) -> list[Piece]:
    """Text `index` of a seed: 1 to `pages` pages, read again `again` times."""
    rng = random.Random(f"reading {seed} {index}")
    count = rng.randint(1, pages)
    names = rng.sample(NAMES, count + MOST_LINKS)
    facts = [(title, rng.choice(PETS), links_of(rng, title, names)) for title in names[:count]]
    pieces = [(piece, False) for title, pet, links in facts for piece, _ in page_pieces(title, pet, links)]
    for _ in range(again):
        for title, pet, links in rng.sample(facts, count):
            pieces += page_pieces(title, pet, rng.sample(links, len(links)))
    return pieces


def links_of(rng: random.Random, title: str, names: list[str]) -> list[tuple[str, str]]:
    relations = rng.sample(RELATIONS, rng.randint(0, MOST_LINKS))
    return [(relation, rng.choice([name for name in names if name != title])) for relation in relations]


def page_pieces(title: str, pet: str, links: list[tuple[str, str]]) -> list[Piece]:
    """A page's text; the pet follows from the title, a name from its relation. Pieces end where tokens of the text do."""
    pieces = [(f"page {title}", False), (f" {pet}", True)]
    for relation, name in links:
        pieces += [(f", {relation}", False), (f" {name}", True)]
    return [*pieces, (".\n", False)]
