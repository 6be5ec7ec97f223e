"""``python -m heterps_compile``: the command, under the interpreter that is asked."""

from heterps_compile.cli.main import main

if __name__ == "__main__":
    main()
