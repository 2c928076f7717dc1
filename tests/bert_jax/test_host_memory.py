"""Large blocks are reused, in a process of its own since the setting stays."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, threading
import numpy as np
from bert_jax.host_memory import keep_freed_memory
if {keep}: keep_freed_memory()
def work():
    for _ in range(20):
        np.ones(100 << 17)  # 100 MiB
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread = threading.Thread(target=work); thread.start(); thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(keep):
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(keep=keep)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="about glibc")
def test_freed_memory_is_used_again():
    assert page_faults(True) < 0.2 * page_faults(False)
