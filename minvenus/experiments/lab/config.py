"""The flags of the credit lab: one world, one budget, and which gains and methods to compare in it.

The learning rate is one number for all methods. 0.8 was read off GRPO alone: there its curve under --preset visits-only (.05
.10 .27 .60 at steps 0 20 40 59) comes close to that of an earlier prototype (.07 .12 .31 .54), whose own rate is not known.
The form around it was not chosen blind: the mean over turns, the choice in the search turn and that preset's five visits are
one of several forms that were tried, taken with the prototype's numbers for all methods in view.

At 0.4, 0.8, 1.6 and 3.2 alike GRPO is behind under measured gains, and front-loaded gains shorten rollouts under `paper` and
not under `uncentred`. How far GRPO is behind depends on the rate: at step 79 it has .08, .15, .55, .94 and `paper` .70, .90,
.96, .98.
"""

from dataclasses import dataclass

from minvenus.config import ConfigError
from minvenus.experiments.lab.credit import METHODS
from minvenus.experiments.lab.world import Gains, World

PROFILES = ("equal", "penalised", "noisy", "rising", "back", "front", "measured")
MEAN_GAIN = 0.8          # of the right visits in every profile but the measured one: they differ in shape, not in size


@dataclass(frozen=True)
class LabConfig:
    """python -m minvenus.experiments.lab: who learns what from which gains."""

    gains: str = "equal rising back front noisy measured"    # profiles, or right visits' gains as .5/.4/.3/.3[:WRONG[~NOISE]]
    methods: str = "all"             # names of methods with spaces between, or all
    hops: int = 4                    # right visits that a correct answer needs
    visits: int = 6                  # visits allowed; as many as hops = no slack
    searches: bool = True            # each visit is preceded by a search turn
    shared: bool = False             # one row of logits for all hops instead of one per hop
    right: float = 0.30              # probability of the right visit at the start
    wrong: float = 0.55              # of a wrong one; the rest is to stop and answer
    groups: int = 8                  # groups (questions) per step
    group_size: int = 4              # G, rollouts per group
    steps: int = 80                  # updates
    seeds: int = 4                   # runs per method and gain, seeds 0, 1, ...
    learning_rate: float = 0.8       # the same for all methods, chosen on GRPO alone
    out: str = "runs/lab"            # folder for the page with the curves

    def __post_init__(self):
        for name, least in (("hops", 1), ("groups", 1), ("group_size", 2), ("steps", 1), ("seeds", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate must be above 0, got {self.learning_rate}")
        self.method_names()
        self.worlds()

    def method_names(self) -> list[str]:
        names = list(METHODS) if self.methods == "all" else self.methods.split()
        unknown = [name for name in names if name not in METHODS]
        if unknown or not names:
            raise ConfigError(f"methods must be all, or some of {' '.join(METHODS)}; got {self.methods!r}")
        return names

    def worlds(self) -> dict[str, World]:
        """The world under each of the gains, by the gains' name."""
        if not self.gains.split():
            raise ConfigError(f"gains must name at least one of {' '.join(PROFILES)}, or give numbers")
        start = (self.right, self.wrong, round(1 - self.right - self.wrong, 9))
        try:
            return {name: World(gains_named(name, self.hops), self.visits, start, self.searches, self.shared)
                    for name in self.gains.split()}
        except ValueError as error:
            raise ConfigError(str(error)) from None


def gains_named(name: str, hops: int) -> Gains:
    quiet = (0.0,) * hops
    equal = (MEAN_GAIN,) * hops
    if name == "equal":
        return Gains(equal, quiet)
    if name == "penalised":
        return Gains(equal, quiet, wrong=-1.5)
    if name == "noisy":
        return Gains(equal, (1.0,) * hops, wrong_noise=1.0)
    if name == "rising":                                          # four hops: .4 .6 .9 1.3
        shape = [8 + k * (k + 3) for k in range(hops)]
        return Gains(tuple(MEAN_GAIN * hops * s / sum(shape) for s in shape), quiet)
    if name == "back":                                            # four hops: .1 .1 .1 2.9
        return Gains((*(0.1,) * (hops - 1), MEAN_GAIN * hops - 0.1 * (hops - 1)), quiet)
    if name == "front":                                           # four hops: 2.6 .2 .2 .2
        return Gains((MEAN_GAIN * hops - 0.2 * (hops - 1), *(0.2,) * (hops - 1)), quiet)
    if name == "measured":                                        # of a tiny language model on a toy web, before its RL
        if hops != 4:
            raise ConfigError(f"the measured gains are those of 4 hops, not of {hops}: leave them out or give your own")
        return Gains((0.47, 0.43, 0.45, 0.40), (0.25, 0.13, 0.19, 0.06), wrong=-0.05, wrong_noise=0.23)
    return gains_given(name, hops)


def gains_given(text: str, hops: int) -> Gains:
    """.5/.4/.3/.3 or .5/.4/.3/.3:-.1 or .5/.4/.3/.3:-.1~.2: right visits by hop, a wrong visit, the spread of all of them."""
    given, _, noise = text.partition("~")
    right, _, wrong = given.partition(":")
    try:
        numbers = tuple(float(number) for number in right.split("/"))
        spread = float(noise or 0)
        gains = Gains(numbers, (spread,) * len(numbers), float(wrong or 0), spread)
    except ValueError:
        raise ConfigError(f"gains {text!r}: neither one of {' '.join(PROFILES)} nor numbers such as .5/.4/.3/.3:-.1~.2") from None
    if len(numbers) != hops or not all(abs(v) < 1e6 for v in (*numbers, gains.wrong, spread)):
        raise ConfigError(f"gains {text!r}: {hops} hops need {hops} finite numbers, got {len(numbers)}")
    return gains
