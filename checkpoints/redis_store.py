"""The store on a server that speaks the Redis protocol (see store.py for what it promises)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .agenda import Agendas
from .beside import Beside
from .outbox import Outbox
from .people import People
from .retention import Retained
from .slots import Slots
from .threads import Threads

if TYPE_CHECKING:
    from .store import Retention, Store


class RedisStore(Retained, People, Outbox, Beside, Agendas, Slots, Threads):
    """A Store. Opened by `open_store`, or made from a factory of transports and begun with `begin`.

    It serves one process, and one event loop at a time; a forked child must open its own.
    """


if TYPE_CHECKING:

    def _is_a_store(store: RedisStore) -> Store:
        return store

    def _retains(store: RedisStore) -> Retention:
        return store
