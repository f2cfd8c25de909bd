"""The command line with a checkpoint after every round, so that few moments of a run are not near the writing of one."""

from laconic.cli import main
from laconic.run import directory

if __name__ == "__main__":
    directory.CHECKPOINT_SECONDS = 0.0
    directory.CHECKPOINT_SHARE = 0
    main()
