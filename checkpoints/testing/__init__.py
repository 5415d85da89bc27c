"""What a store's author needs to show that it keeps the promises of store.py."""
