"""``disagg``, whose country of several months is small: for walks that tests type.

The commands, the files and the words are those of the demo; a fit takes seconds.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from pipeline.demo import months

AREAS = 12
MODEL = """\
model:
  inducing: 8
  integrate: none
  kernel: "smooth(x) + matern12(space) * time(matern12) + constant * season"
  options: {n_moving: 6, n_season: 4, harmonics: 1}
evaluate:    {schemes: []}
gates:       {better_than_constant: false}
"""


def main() -> int:
    """Run the command line on a small country."""
    from pipeline.cli.main import main as run

    months.SPECS["small"] = replace(
        months.SPECS["small"], shape=(18, 20), n_land=180, n_area=AREAS, n_town=4, people=3e5
    )
    months.MODEL = MODEL
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
