"""Assertions: branches whose other side raises, found in the bytecode of the frame that tests the branch."""

from __future__ import annotations

import dis
import functools
import os
import pathlib
import sys
import types

import torch

from switchgear_core.record.user_code import is_own_file

#: The only files of PyTorch that assert on tensor data: the arguments of distributions.
_DISTRIBUTIONS = str(pathlib.Path(torch.__file__).parent / "distributions") + os.sep
_BRANCHES = ("POP_JUMP_", "JUMP_IF_")
#: Operations that may stand between a call with a truth value and the branch.
_BEFORE_BRANCHES = ("CALL", "CACHE", "TO_BOOL")
_ENDS = ("RETURN", "YIELD", "SEND", "FOR_ITER", "JUMP_BACKWARD")


def asserted() -> bool | None:
    """Return the truth of a tensor for which the asking code goes on; None if no side of the branch only raises."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and _is_passed(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else _truth(frame.f_code, frame.f_lasti)


def _is_passed(file: str) -> bool:
    return is_own_file(file) and not file.startswith(_DISTRIBUTIONS)


@functools.lru_cache(1024)
def _truth(code: types.CodeType, offset: int) -> bool | None:
    """Return the side of the branch at or just after an instruction, if the other side can only raise."""
    instructions = [item for item in dis.get_instructions(code) if item.offset >= offset]
    place = 0
    while place < len(instructions) and instructions[place].opname.startswith(_BEFORE_BRANCHES):
        place += 1
    branch = instructions[place] if place < len(instructions) else None
    if branch is None or not branch.opname.startswith(_BRANCHES):
        return None
    jumps = "IF_TRUE" in branch.opname
    if _raises(instructions[place + 1 :]):
        return jumps
    return not jumps if _raises(_behind(instructions, branch)) else None


def _behind(instructions: list[dis.Instruction], jump: dis.Instruction) -> list[dis.Instruction]:
    """Return the instructions at the target of a jump; none for a jump back."""
    if jump.argval <= jump.offset:
        return []
    return [item for item in instructions if item.offset >= jump.argval]


def _raises(instructions: list[dis.Instruction]) -> bool:
    """Check whether all paths through instructions end by raising."""
    for place, item in enumerate(instructions):
        if item.opname == "RAISE_VARARGS":
            return True
        if item.opname.startswith(_ENDS):
            return False
        if item.opname.startswith("JUMP_FORWARD"):
            return _raises(_behind(instructions, item))
        if item.opname.startswith(_BRANCHES):
            return _raises(_behind(instructions, item)) and _raises(instructions[place + 1 :])
    return False
