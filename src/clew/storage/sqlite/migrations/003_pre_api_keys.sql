-- API keys: one row each, changed by compare-and-swap on its revision. `body` is JSON with a salted digest, never the key.

CREATE TABLE api_keys (
    key_id   TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    body     BLOB NOT NULL
) WITHOUT ROWID;
