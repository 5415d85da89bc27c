"""Runs as fenced, append-only journals in Redis or Valkey. It knows bytes and nothing of agents."""

from .connect import open_store
from .durability import Durability
from .leases import Heartbeat
from .sealing import KeyRing
from .settings import StoreSettings
from .store import Store

__all__ = ["Durability", "Heartbeat", "KeyRing", "Store", "StoreSettings", "open_store"]
