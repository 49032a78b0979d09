-- The tables of a Clew store in PostgreSQL. They are made in the schema that the connection string names.
--
-- Every table of runs is keyed by shard first, so that each transition touches one shard. Instants are whole microseconds
-- since 1970-01-01 UTC (the views show them as timestamps). Text is compared by code point ("C"), whatever the database's
-- locale. Fill factors leave room on each page for the next versions of rows that are rewritten at every step.

CREATE TABLE meta (
    key   text COLLATE "C" PRIMARY KEY,
    value bigint NOT NULL
);

CREATE TABLE namespaces (
    name              text COLLATE "C" PRIMARY KEY,
    secret            bytea  NOT NULL,
    retention_seconds bigint NOT NULL,
    settings          bytea  NOT NULL
);

-- One row a run. What never changes comes first and what every transition rewrites last, so that the log of an update
-- holds only the latter. An update of an open run usually changes no indexed column (a heap-only update: no index is
-- touched): that is what `wake_after` is for. It is at or before `attention_at`, and is left alone while that is less
-- than five minutes behind it.
CREATE TABLE executions (
    shard                  integer NOT NULL,
    run_key                bigint  NOT NULL,
    previous_run_key       bigint  NOT NULL,
    start_time             bigint  NOT NULL,
    execution_time         bigint  NOT NULL,
    namespace              text COLLATE "C" NOT NULL,
    workflow_id            text COLLATE "C" NOT NULL,
    run_id                 text COLLATE "C" NOT NULL,
    workflow_type          text COLLATE "C" NOT NULL,
    first_execution_run_id text COLLATE "C" NOT NULL,
    parent_workflow_id     text COLLATE "C" NOT NULL,
    parent_run_id          text COLLATE "C" NOT NULL,
    root_workflow_id       text COLLATE "C" NOT NULL,
    root_run_id            text COLLATE "C" NOT NULL,
    task_queue             text COLLATE "C" NOT NULL,
    memo                   text COLLATE "C",
    search_attributes      text COLLATE "C",
    close_time             bigint,
    is_latest              boolean NOT NULL,
    is_open                boolean NOT NULL,
    is_busy                boolean NOT NULL,
    status                 text COLLATE "C" NOT NULL,
    wake_after             bigint,
    attention_at           bigint,
    version                bigint  NOT NULL,
    commit_id              bigint  NOT NULL,
    history_length         bigint  NOT NULL,
    history_size_bytes     bigint  NOT NULL,
    state                  bytea   NOT NULL,
    PRIMARY KEY (shard, run_key)
) WITH (fillfactor = 60);

-- One latest run per workflow id; as a run follows only on one that is closed, law 4 (one open run) as well.
CREATE UNIQUE INDEX executions_latest ON executions (shard, workflow_id, namespace) WHERE is_latest;
CREATE UNIQUE INDEX executions_run_id ON executions (shard, run_id);

-- The next instants at which open runs need the engine.
CREATE INDEX executions_attention ON executions (shard, wake_after) WHERE is_open AND wake_after IS NOT NULL;

-- What is looked at when a node has died.
CREATE INDEX executions_busy ON executions (shard, run_key) WHERE is_open AND is_busy;

-- Lists, newest first: all runs, open ones, closed ones of one status. None is touched by an update of an open run.
CREATE INDEX executions_listed ON executions (namespace, start_time, run_key);
CREATE INDEX executions_listed_open ON executions (namespace, start_time, run_key) WHERE is_open;
CREATE INDEX executions_listed_closed ON executions (namespace, status, start_time, run_key) WHERE NOT is_open;

-- What retention removes first.
CREATE INDEX executions_retained ON executions (namespace, close_time) WHERE NOT is_open AND close_time IS NOT NULL;

-- One row a transition; `events` is the JSON array of its events in UTF-8.
CREATE TABLE history (
    shard          integer NOT NULL,
    run_key        bigint  NOT NULL,
    first_event_id bigint  NOT NULL,
    last_event_id  bigint  NOT NULL,
    events         bytea   NOT NULL,
    PRIMARY KEY (shard, run_key, first_event_id)
);

CREATE TABLE pending_items (
    shard   integer NOT NULL,
    run_key bigint  NOT NULL,
    kind    integer NOT NULL,
    item_id bigint  NOT NULL,
    data    bytea   NOT NULL,
    PRIMARY KEY (shard, run_key, kind, item_id)
) WITH (fillfactor = 80);

-- Tasks that wait for a worker. A claim is only an update of `claimed_until`, which no index holds.
CREATE TABLE tasks (
    shard              integer  NOT NULL,
    task_id            bigint   NOT NULL,
    run_key            bigint   NOT NULL,
    namespace          text COLLATE "C" NOT NULL,
    task_queue         text COLLATE "C" NOT NULL,
    kind               smallint NOT NULL,
    scheduled_event_id bigint   NOT NULL,
    attempt            integer  NOT NULL,
    priority           smallint NOT NULL,
    claimed_until      bigint   NOT NULL,
    PRIMARY KEY (shard, task_id)
) WITH (fillfactor = 80);
CREATE INDEX tasks_queue ON tasks (namespace, task_queue, kind, priority, task_id);
CREATE INDEX tasks_run ON tasks (shard, run_key);

CREATE TABLE outbox (
    shard      integer NOT NULL,
    message_id bigint  NOT NULL,
    run_key    bigint  NOT NULL,
    body       bytea   NOT NULL,
    PRIMARY KEY (shard, message_id)
);
CREATE INDEX outbox_run ON outbox (shard, run_key);

-- Search attributes, one row a value, typed by `kind`: texts (Keyword, KeywordList, and Text, one row a word in lower case)
-- in `text_value`, numbers (Int, Double, Bool as 0 or 1, Datetime in microseconds) in `number_value`. Indexes hold no
-- text longer than `left(…, 200)`, as a page has no room for any length.
CREATE TABLE search_attributes (
    shard        integer NOT NULL,
    run_key      bigint  NOT NULL,
    name         text COLLATE "C" NOT NULL,
    ordinal      integer NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    text_value   text COLLATE "C",
    number_value numeric,
    PRIMARY KEY (shard, run_key, name, ordinal)
);
CREATE INDEX search_attributes_text ON search_attributes (name, left(text_value, 200)) WHERE text_value IS NOT NULL;
CREATE INDEX search_attributes_number ON search_attributes (name, number_value) WHERE number_value IS NOT NULL;

-- The names in use and the type each was first given.
CREATE TABLE search_attribute_names (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    kind      text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, name)
);

-- Deployments of workers: changed by compare-and-swap on the revision. `body` is JSON.
CREATE TABLE deployments (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    revision  bigint NOT NULL,
    body      bytea  NOT NULL,
    PRIMARY KEY (namespace, name)
);

-- Law 1: a recorded event never changes.
CREATE FUNCTION refuse_change_of_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'history is append-only: a recorded event never changes';
END;
$$;
CREATE TRIGGER history_append_only BEFORE UPDATE ON history
    FOR EACH ROW EXECUTE FUNCTION refuse_change_of_history();

-- Vacuum by share of the table would come ever more seldom as tables grow, while the dead rows of a step are few and
-- recent: so by numbers. Rows of tasks and of the outbox live for moments: their tables are swept most often.
ALTER TABLE executions SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_analyze_threshold = 5000, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE tasks SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE outbox SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE pending_items SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 1);
-- History is only appended to and, by retention, deleted from its old end.
ALTER TABLE history SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

-- The nodes that share the database, the shards each does the work of, and messages between them. Small tables that are
-- rewritten often, with no index on what changes.
CREATE TABLE nodes (
    node_id     text COLLATE "C" PRIMARY KEY,
    address     text   NOT NULL,
    body        bytea  NOT NULL,
    lease_until bigint NOT NULL
) WITH (fillfactor = 30);

CREATE TABLE shard_leases (
    shard   integer PRIMARY KEY,
    node_id text COLLATE "C",
    epoch   bigint NOT NULL
) WITH (fillfactor = 30);

CREATE TABLE mail (
    mail_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id text COLLATE "C" NOT NULL,
    body    bytea NOT NULL
);
CREATE INDEX mail_node ON mail (node_id, mail_id);
