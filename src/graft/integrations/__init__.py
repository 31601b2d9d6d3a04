"""Graft behind the interfaces of other libraries; nothing else in the package knows them."""
