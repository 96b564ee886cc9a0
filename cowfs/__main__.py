"""The `cowfs` command; `python -m cowfs` is the same."""

from __future__ import annotations

import sys

_HELP = {"-h", "--help"}


def main() -> int:
    """Run the command of sys.argv; returns the exit code.

    `hook`, `statusline`, and `checkpoint` and `status` of a live mount take a path without click
    and without the store: agents run them at every prompt, and importing those costs more than the
    work.
    """
    arguments = sys.argv[1:]
    try:
        if len(arguments) > 1 and arguments[0] == "hook" and not _HELP & set(arguments):
            from cowfs.hooks import run

            return run.run(arguments[1:])
        if arguments == ["statusline"]:
            from cowfs.cli import statusline

            return statusline.run()
        from cowfs.cli import output, quick

        try:
            code = quick.run(arguments)
            if code is not None:
                return output.finish(code)
        except Exception as error:
            from cowfs.cli import app

            return app.fail(error, arguments)
        from cowfs.cli import app

        return app.run(arguments)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
