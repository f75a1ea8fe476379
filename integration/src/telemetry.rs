//! The inventory of metrics, written from the registries themselves.
