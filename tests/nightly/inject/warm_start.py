"""Start MindFormers again and again, each time in a process of its own that need not import it anew.

    python warm_start.py MODULE

A line of standard input asks for a start: its arguments, folder, environment and output, as JSON. A line of standard
output says how it ended. What is imported is MODULE, as the script that each start then runs imports it.
"""

import importlib
import json
import os
import runpy
import sys
import traceback

importlib.import_module(sys.argv[1])  # which takes most of a start


def start(asked):
    """Be the start that is asked for; never returns."""
    os.chdir(asked["folder"])
    os.environ.update(asked["environment"])
    output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for opened, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(opened, number)
    sys.argv, code = asked["arguments"], 0
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:  # noqa: BLE001  whatever it was, this start has ended
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


for line in sys.stdin:
    child = os.fork()
    if not child:
        start(json.loads(line))
    _, status = os.waitpid(child, 0)
    print(json.dumps({"ended": status}), flush=True)
