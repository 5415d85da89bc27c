"""Runs as fenced, append-only journals in Redis or Valkey. It knows bytes and nothing of agents."""

from .connect import open_store
from .leases import Heartbeat
from .settings import StoreSettings
from .store import Store

__all__ = ["Heartbeat", "Store", "StoreSettings", "open_store"]
