"""The words of the toy web (tools/toyweb.py), here because the tiny tokenizer gives each of them one id.

Byte-level BPE writes a word differently after a space than after a newline or a quote: two ids that a model of half a million
parameters would have to learn to be one word. So every word here has one id, with the space before it, and the toy web
never writes it without one.

Names are the titles of pages. Those of training questions and of test questions are disjoint.
"""

NAMES = [
    "Abe", "Ada", "Amy", "Ann", "Ali", "Art", "Ava", "Bea", "Ben", "Bill", "Bob", "Bud", "Cal", "Cam", "Cid", "Cleo", "Dan",
    "Dean", "Dee", "Del", "Don", "Dora", "Drew", "Earl", "Eli", "Ella", "Eve", "Fay", "Finn", "Flo", "Gail", "Gia", "Gil",
    "Gus", "Guy", "Hal", "Hans", "Hope", "Hugh", "Ian", "Ida", "Ike", "Ira", "Ivy", "Jack", "Jan", "Jay", "Jean", "Jim",
    "Joe", "Joy", "Kai", "Kay", "Ken", "Kim", "Kit", "Lea", "Lee", "Leo", "Liz", "Lou", "Lucy", "Mae", "Max", "Meg", "Mia",
    "Mike", "Moe", "Nan", "Ned", "Nell", "Nora", "Ole", "Omar", "Otto", "Pam", "Pat", "Paul", "Peg", "Pia", "Ray", "Rex",
    "Rob", "Ron", "Roy", "Sam", "Sid", "Sue", "Ted", "Tess", "Tim", "Tom", "Uma", "Vic", "Will", "Zoe",
]
TEST_NAMES = NAMES[2::3]
TRAIN_NAMES = [name for name in NAMES if name not in TEST_NAMES]

PETS = [
    "cat", "dog", "owl", "hen", "fox", "pig", "cow", "bat", "bee", "ant", "emu", "elk", "ape", "yak", "ram", "rat", "eel",
    "hog", "jay", "koi", "asp", "doe", "cub", "pug",
]
RELATIONS = ["boss", "friend", "twin", "uncle", "coach", "rival", "host", "heir", "aunt", "nurse", "guard", "pupil"]
VERBS = ["sings", "cooks", "paints", "sails", "dances", "writes", "digs", "swims"]
