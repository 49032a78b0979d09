-- Deployments of workers: one row each, changed by compare-and-swap on its revision. `body` is JSON.

CREATE TABLE deployments (
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    revision  INTEGER NOT NULL,
    body      BLOB NOT NULL,
    PRIMARY KEY (namespace, name)
) WITHOUT ROWID;
