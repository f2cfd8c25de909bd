"""The command line with a checkpoint after every round, so that few moments of a run are not near the writing of one.

With HOLD=n in the environment the run waits in round n until it is killed.
"""

import os
import time

from laconic.cli import main
from laconic.run import directory

HOLD = int(os.environ.get("HOLD", 0))
append = directory.RunDirectory.append


def held(self: directory.RunDirectory, record: dict) -> None:
    append(self, record)
    while record["round"] == HOLD:
        time.sleep(1)


if __name__ == "__main__":
    directory.CHECKPOINT_SECONDS = 0.0
    directory.CHECKPOINT_RATIO = 0
    directory.RunDirectory.append = held
    main()
