-- API keys: changed by compare-and-swap on the revision. `body` is JSON with a salted digest, never a key.

CREATE TABLE api_keys (
    key_id   text COLLATE "C" PRIMARY KEY,
    revision bigint NOT NULL,
    body     bytea  NOT NULL
);
