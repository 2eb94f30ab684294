"""What the toy web writes, in plain English: for people, no model ever reads it.

    From Kim own guard pupil?           the pets of Kim, of Kim's guard and of that guard's pupil
    After Kim own guard pupil?          the pet of Kim's guard's pupil
    pets own cat guard owl pupil hen    the cat, the guard's owl, the pupil's hen
    page Kim own cat guard Abe.         Kim: pet cat, guard Abe
"""

from minvenus.tools.toyweb import FIRST, NAMES, PETS, RELATIONS

WORDS = {FIRST, *NAMES, *PETS, *RELATIONS}


def with_words(text: str) -> str:
    """A text and, if it is of the toy web, what it says on a line of its own."""
    words = "; ".join(filter(None, map(sentence, text.splitlines())))
    return f"{text}\n({words})" if words else text


def sentence(line: str) -> str:
    """A question, an answer or a page in English; "" for any other text."""
    words = line.rstrip(".?").split()
    if not WORDS.issuperset(words[1:]):
        return ""
    match words:
        case ["From", name, _, *chain]:
            people = name
            for relation in chain:
                people += f", of {name}'s {relation}"
                name = f"that {relation}"
            return "the pets of " + " and of ".join(people.rsplit(", of ", 1))
        case ["After", name, _, *chain]:
            return "the pet of " + "'s ".join([name, *chain])
        case ["pets" | "pet", *others]:
            pets = map("the {}'s {}".format, others[::2], others[1::2])
            return ", ".join(pets).replace("own's ", "")
        case ["page", name, *others]:
            # a pet stands behind the relation that its page was visited for
            facts = []
            for relation, word in zip(others[::2], others[1::2], strict=False):
                facts.append(f"{'pet' if word in PETS else relation} {word}")
            return f"{name}: " + (", ".join(facts) or "nothing")
    return ""
