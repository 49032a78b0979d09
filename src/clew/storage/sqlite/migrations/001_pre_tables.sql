-- The tables of a Clew store.
--
-- Instants are whole microseconds since 1970-01-01 UTC. Keys grow: runs are inserted at one end of their table, and so is
-- history, because a key that jumps about costs a B-tree most of its speed. One file is one shard group, so the shard is
-- kept in every row but leads only the indexes whose readers always know it.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value
) WITHOUT ROWID;

CREATE TABLE namespaces (
    name              TEXT PRIMARY KEY,
    secret            BLOB NOT NULL,
    retention_seconds INTEGER NOT NULL,
    settings          BLOB NOT NULL
) WITHOUT ROWID;

-- One row a run: what every transition rewrites first, then what people search by, the snapshot last (it may spill over to
-- pages of its own, which a reader of the columns before it never touches).
CREATE TABLE executions (
    run_key                INTEGER PRIMARY KEY,
    shard                  INTEGER NOT NULL,
    version                INTEGER NOT NULL,
    status                 TEXT NOT NULL,
    is_open                INTEGER NOT NULL,
    is_busy                INTEGER NOT NULL,
    attention_at           INTEGER,
    history_length         INTEGER NOT NULL,
    history_size_bytes     INTEGER NOT NULL,
    namespace              TEXT NOT NULL,
    workflow_id            TEXT NOT NULL,
    run_id                 TEXT NOT NULL,
    workflow_type          TEXT NOT NULL,
    task_queue             TEXT NOT NULL,
    start_time             INTEGER NOT NULL,
    execution_time         INTEGER NOT NULL,
    close_time             INTEGER,
    first_execution_run_id TEXT NOT NULL,
    parent_workflow_id     TEXT NOT NULL,
    parent_run_id          TEXT NOT NULL,
    root_workflow_id       TEXT NOT NULL,
    root_run_id            TEXT NOT NULL,
    memo                   TEXT,
    search_attributes      TEXT,
    state                  BLOB NOT NULL
);

-- The next instants at which open runs need the engine; it alone answers the question.
CREATE INDEX executions_attention ON executions (attention_at, shard, run_key)
    WHERE is_open AND attention_at IS NOT NULL;

-- What a restart must look at.
CREATE INDEX executions_busy ON executions (run_key) WHERE is_open AND is_busy;

-- Law 4: one open run per workflow id.
CREATE UNIQUE INDEX executions_open ON executions (namespace, workflow_id) WHERE is_open;

CREATE INDEX executions_workflow_id ON executions (namespace, workflow_id, run_key);
CREATE UNIQUE INDEX executions_run_id ON executions (run_id);

-- Lists, newest first (each index ends with the run key by itself): all runs, open ones, closed ones of one status. The
-- last one also counts them. None is touched by an update of an open run.
CREATE INDEX executions_listed ON executions (namespace);
CREATE INDEX executions_listed_open ON executions (namespace) WHERE is_open;
CREATE INDEX executions_listed_closed ON executions (namespace, status) WHERE NOT is_open;

-- What retention removes first.
CREATE INDEX executions_retained ON executions (namespace, close_time) WHERE NOT is_open AND close_time IS NOT NULL;

-- One row a transition; `events` is the JSON array of its events, as text. Rows are appended in the order of commits.
CREATE TABLE history (
    sequence       INTEGER PRIMARY KEY,
    shard          INTEGER NOT NULL,
    run_key        INTEGER NOT NULL,
    first_event_id INTEGER NOT NULL,
    last_event_id  INTEGER NOT NULL,
    events         TEXT NOT NULL
);
CREATE UNIQUE INDEX history_run ON history (shard, run_key, first_event_id);

CREATE TABLE pending_items (
    shard   INTEGER NOT NULL,
    run_key INTEGER NOT NULL,
    kind    INTEGER NOT NULL,
    item_id INTEGER NOT NULL,
    data    BLOB NOT NULL,
    PRIMARY KEY (shard, run_key, kind, item_id)
) WITHOUT ROWID;

-- Tasks that wait for a worker.
CREATE TABLE tasks (
    task_id            INTEGER PRIMARY KEY,
    shard              INTEGER NOT NULL,
    run_key            INTEGER NOT NULL,
    namespace          TEXT NOT NULL,
    task_queue         TEXT NOT NULL,
    kind               INTEGER NOT NULL,
    scheduled_event_id INTEGER NOT NULL,
    attempt            INTEGER NOT NULL,
    priority           INTEGER NOT NULL
);
CREATE INDEX tasks_queue ON tasks (namespace, task_queue, kind, priority, task_id);
CREATE INDEX tasks_run ON tasks (shard, run_key);

CREATE TABLE outbox (
    message_id INTEGER PRIMARY KEY,
    shard      INTEGER NOT NULL,
    run_key    INTEGER NOT NULL,
    body       BLOB NOT NULL
);
CREATE INDEX outbox_run ON outbox (shard, run_key);

-- Search attributes, one row a value, typed by `kind`: Keyword, KeywordList, Datetime (microseconds), Int, Double, Bool
-- (0 or 1), and Text (one row a word, in lower case).
CREATE TABLE search_attributes (
    run_key INTEGER NOT NULL,
    name    TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    value   NOT NULL,
    PRIMARY KEY (run_key, name, ordinal)
) WITHOUT ROWID;
CREATE INDEX search_attributes_value ON search_attributes (name, value, run_key);

-- The names in use and the type each was first given.
CREATE TABLE search_attribute_names (
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    kind      TEXT NOT NULL,
    PRIMARY KEY (namespace, name)
) WITHOUT ROWID;

-- Law 1: a recorded event never changes.
CREATE TRIGGER history_append_only BEFORE UPDATE ON history
BEGIN
    SELECT raise(ABORT, 'history is append-only: a recorded event never changes');
END;
