"""The words for everything that may go wrong: one vocabulary for all layers of testing.

The values are what reports and replay lines say. A layer that cannot make a fault leaves it out and
says so; it never gives it another name.
"""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """One thing that may go wrong, at one point of a run."""

    # a process
    CRASH_BEFORE = "crash_before"  # SIGKILL before the point; replay lines write `:before=kill`
    CRASH_AFTER = "crash_after"  # SIGKILL once the point was passed; `:after=kill`
    PAUSE = "pause"  # stopped for longer than its lease, then let go on
    CANCELLED_AWAIT = "cancelled_await"  # the task is cancelled while it waits for the answer

    # the way to the store
    LOST_REQUEST = "lost_request"  # never arrives, and the connection is cut
    LOST_REPLY_AFTER_APPLY = "lost_reply_after_apply"  # applied; cut instead of an answer
    DUPLICATE_REQUEST = "duplicate_request"  # arrives twice
    LATE_REQUEST = "late_request"  # arrives once its sender is dead and the next owner has acted
    SLOW_REPLY = "slow_reply"  # answered after the sender has stopped waiting
    CONN_RESET = "conn_reset"  # cut while the request is on its way: nobody knows
    HALF_REPLY = "half_reply"  # cut within the answer

    # the store says no, and has applied nothing
    READONLY = "READONLY"
    LOADING = "LOADING"
    OOM = "OOM"
    NOREPLICAS = "NOREPLICAS"
    BUSY = "BUSY"
    NOSCRIPT = "NOSCRIPT"
    MASTERDOWN = "MASTERDOWN"
    TRYAGAIN = "TRYAGAIN"
    MOVED = "MOVED"
    ASK = "ASK"
    CLUSTERDOWN = "CLUSTERDOWN"
    NOAUTH = "NOAUTH"
    NOPERM = "NOPERM"
    DISK_FULL = "disk_full"  # the server answers MISCONF

    # the store loses or confuses
    FAILOVER_LOSE = "failover_lose"  # a failover that forgets the last writes
    REPLICA_STALE_READ = "replica_stale_read"
    CLOCK_JUMP = "clock_jump"

    # a tool
    TOOL_HANG = "hang"
    TOOL_RAISE = "raise"
    TOOL_HUGE_OUTPUT = "huge_output"
    TOOL_NON_UTF8 = "non_utf8"
    TOOL_EFFECT_THEN_RAISE = "effect_then_raise"
    TOOL_EFFECT_THEN_HANG = "effect_then_hang"

    # the model
    MODEL_CUT_STREAM = "cut_stream"
    MODEL_RATE_LIMIT = "429"
    MODEL_SERVER_ERROR = "5xx"
    MODEL_MALFORMED_ARGUMENTS = "malformed_json_args"
    MODEL_TWO_CHOICES = "two_choices"
    MODEL_DIFFERENT_ANSWER = "different_answer_on_retry"


CRASHES = frozenset({Fault.CRASH_BEFORE, Fault.CRASH_AFTER})

# Nobody who waits for the answer can know whether the request was applied.
NETWORK = frozenset(
    {
        Fault.LOST_REQUEST,
        Fault.LOST_REPLY_AFTER_APPLY,
        Fault.DUPLICATE_REQUEST,
        Fault.LATE_REQUEST,
        Fault.SLOW_REPLY,
        Fault.CONN_RESET,
        Fault.HALF_REPLY,
    }
)

# What a server answers, byte for byte, to a request that it does not apply.
ERROR_LINES: dict[Fault, str] = {
    Fault.READONLY: "READONLY You can't write against a read only replica.",
    Fault.LOADING: "LOADING Redis is loading the dataset in memory",
    Fault.OOM: "OOM command not allowed when used memory > 'maxmemory'.",
    Fault.NOREPLICAS: "NOREPLICAS Not enough good replicas to write.",
    Fault.BUSY: "BUSY Redis is busy running a script. You can only call SCRIPT KILL.",
    Fault.NOSCRIPT: "NOSCRIPT No matching script. Please use EVAL.",
    Fault.MASTERDOWN: "MASTERDOWN Link with MASTER is down.",
    Fault.TRYAGAIN: "TRYAGAIN Multiple keys request during rehashing of slot",
    Fault.MOVED: "MOVED 3999 127.0.0.1:6381",
    Fault.ASK: "ASK 3999 127.0.0.1:6381",
    Fault.CLUSTERDOWN: "CLUSTERDOWN The cluster is down",
    Fault.NOAUTH: "NOAUTH Authentication required.",
    Fault.NOPERM: "NOPERM this user has no permissions to run this command",
    Fault.DISK_FULL: "MISCONF Errors writing to the AOF file: No space left on device",
}
