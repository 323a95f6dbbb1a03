"""Prints the scalars of a folder of event files as TensorBoard itself reads them: {tag: [[step, value], ...]}.

Exits with 77 where the tensorboard package is missing.
"""
import json
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    print(f"TensorBoard's Python package is not installed: {error}", file=sys.stderr)
    sys.exit(77)

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
