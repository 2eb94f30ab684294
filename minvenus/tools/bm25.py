"""Search by words over a handful of texts: Okapi BM25.

    score(q, d) = sum_{w in q} idf(w) * f(w, d) (k1 + 1) / (f(w, d) + k1 (1 - b + b |d| / mean |d|))
    idf(w)      = ln(1 + (N - n(w) + 1/2) / (n(w) + 1/2))

N texts, n(w) of them contain w, f(w, d) occurrences of w in d, |d| words in d. idf is positive for every word, so a text scores
above 0 exactly if it shares a word with the query. Deterministic: equal scores keep the order of the texts. Knows no files.
"""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

# A word is a run of letters and digits; Chinese and Japanese write none, so there every character is one.
UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")


def words(text: str) -> list[str]:
    return WORD.findall(unicodedata.normalize("NFKC", text).casefold())


class BM25:
    """An index over texts. `search` gives (index of the text, score), best first."""

    def __init__(self, texts: Sequence[str], k1: float = 1.5, b: float = 0.75):
        counts = [Counter(words(text)) for text in texts]
        lengths = [count.total() for count in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self.k1 = k1
        self.norm = [k1 * (1 - b + b * length / mean) for length in lengths]
        self.postings: dict[str, list[tuple[int, int]]] = defaultdict(list)       # word -> (text, occurrences) in order
        for i, count in enumerate(counts):
            for word, n in count.items():
                self.postings[word].append((i, n))

    def search(self, query: str, top: int | None = None) -> list[tuple[int, float]]:
        scores: dict[int, float] = defaultdict(float)
        for word in dict.fromkeys(words(query)):      # each word once, in a fixed order: sums of floats depend on it
            found = self.postings.get(word, [])
            idf = math.log(1 + (len(self.norm) - len(found) + 0.5) / (len(found) + 0.5))
            for i, n in found:
                scores[i] += idf * n * (self.k1 + 1) / (n + self.norm[i])
        return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:top]
