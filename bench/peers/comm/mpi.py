"""All-reduce of f32 in MPI, in place, between processes of this machine.

Started without mpirun it starts itself under the mpirun beside its interpreter.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import common

args = common.options()
if "OMPI_COMM_WORLD_SIZE" not in os.environ:
    mpirun = str(Path(sys.executable).parent / "mpirun")
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(args.ranks), sys.executable]
    os.execv(mpirun, command + sys.argv)

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
data = numpy.zeros(args.bytes // 4, numpy.float32)
common.measure(args, world.rank, world.Barrier, lambda: world.Allreduce(MPI.IN_PLACE, data))
