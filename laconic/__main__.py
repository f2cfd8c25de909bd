"""`python -m laconic` is the same as `laconic`."""

from laconic.cli import main

if __name__ == "__main__":
    main()
