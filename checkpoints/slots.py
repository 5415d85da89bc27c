"""Limits of groups, and the places that they leave."""

from __future__ import annotations

from collections.abc import Mapping

from .calls import Calls
from .errors import StoreUsageError
from .keys import checked_run_id, group_keys, limits_key
from .model import RunId
from .schedule import Limit

MAX_GROUP_CHARS = 200


class Slots(Calls):
    """Each group has a slot of its own on a cluster: its members are runs of all partitions."""

    async def limits(self) -> Mapping[str, Limit]:
        """See Schedule."""
        flat = await self._read("HGETALL", limits_key(self._all_keys().namespace))
        found = {}
        for group, packed in zip(flat[0::2], flat[1::2], strict=True):
            at_once, per_minute = map(int, packed.split())
            found[group.decode()] = Limit(at_once=at_once or None, per_minute=per_minute or None)
        return found

    async def set_limit(self, group: str, limit: Limit) -> None:
        """See Schedule."""
        if not group or len(group) > MAX_GROUP_CHARS:
            raise StoreUsageError(
                f"a group has a name of 1 to {MAX_GROUP_CHARS} characters, not {group[:40]!r}."
            )
        for number in (limit.at_once, limit.per_minute):
            if number is not None and number < 1:
                raise StoreUsageError(f"{number} is not a limit. Use 1 or more, or none at all.")
        key = limits_key(self._all_keys().namespace)
        if limit == Limit():
            await self._read("HDEL", key, group)
            return
        await self._read("HSET", key, group, f"{limit.at_once or 0} {limit.per_minute or 0}")

    async def take_slot(
        self, group: str, run_id: RunId, limit: Limit, *, owner: str, term_ms: int, begins: bool
    ) -> int:
        """See Schedule."""
        reply = await self._script(
            "slot",
            group_keys(self._all_keys().namespace, group),
            *(_member(run_id, owner), run_id, limit.at_once or 0, limit.per_minute or 0),
            *(term_ms, int(begins)),
        )
        return 0 if reply[0] == b"OK" else max(1, int(reply[1]))

    async def free_slot(self, group: str, run_id: RunId, *, owner: str) -> None:
        """See Schedule."""
        held, _ = group_keys(self._all_keys().namespace, group)
        await self._read("ZREM", held, _member(run_id, owner))

    async def withdraw_slot(self, group: str, run_id: RunId, *, owner: str) -> None:
        """See Schedule."""
        # No script: what is seen between the two is a beginning too many, for a moment.
        for key in group_keys(self._all_keys().namespace, group):
            await self._read("ZREM", key, _member(run_id, owner))


def _member(run_id: RunId, owner: str) -> bytes:
    """A member of a group. Its run is what stands before the first ':', which no run id has."""
    return checked_run_id(run_id) + b":" + owner.encode()
