"""The SQL that all stores share: plain functions over a transaction. What differs between databases is a `Dialect`."""
