"""Judge a resume by the logs: position, data, weights, and updates of the resumed run.

Used by `ckpttool postflight`, and by `watch` for each new run. It starts in `verbs.py`; `rules/judge.py` compares the two
logs.
"""
