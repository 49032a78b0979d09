-- The write path of a commit, as a temporary view of the writer's own connection.
--
-- One INSERT of many rows into the view is one call into SQLite that checks the guards and writes everything. That is
-- the point: each call lets go of the interpreter's lock and must win it back, which beside a busy Python thread takes
-- milliseconds, so a transaction is one call whatever it holds, as long as it has no rows in tables beside. A row
-- whose version is 0 is padding.
--
-- Without a namespace as text (the columns from expected_latest_run_key on are 0, or not given) a row is an update that
-- leaves the visibility alone. With one it is the whole row: an insert (expected_version 0), or an update whose
-- visibility changed.
--
-- Numbers and texts stand for NULL, which Python's driver takes eight times as long to hand over: an instant before the
-- year 1 for none, an empty text for no JSON.

CREATE TEMP VIEW clew_write AS
SELECT NULL AS run_key, NULL AS shard, NULL AS expected_version, NULL AS version, NULL AS status, NULL AS is_open,
       NULL AS is_busy, NULL AS attention_at, NULL AS history_length, NULL AS history_size_bytes, NULL AS state,
       NULL AS first_event_id, NULL AS last_event_id, NULL AS events,
       NULL AS expected_latest_run_key, NULL AS namespace, NULL AS workflow_id, NULL AS run_id,
       NULL AS workflow_type, NULL AS task_queue, NULL AS start_time, NULL AS execution_time, NULL AS close_time,
       NULL AS first_execution_run_id, NULL AS parent_workflow_id, NULL AS parent_run_id, NULL AS root_workflow_id,
       NULL AS root_run_id, NULL AS memo, NULL AS search_attributes;

-- The hot one: leaves alone what only a close changes, so that no more indexes than needed are touched. An index is written
-- anew where one of its columns is set, be it to what it was before; so these are set only if they change.
CREATE TEMP TRIGGER clew_update_open INSTEAD OF INSERT ON clew_write
WHEN new.is_open AND typeof(new.namespace) <> 'text'
BEGIN
    UPDATE executions
    SET version = new.version, history_length = new.history_length, history_size_bytes = new.history_size_bytes,
        state = new.state
    WHERE run_key = new.run_key AND version = new.expected_version AND shard = new.shard;
    SELECT raise(ABORT, 'version_conflict') WHERE changes() <> 1;
    UPDATE executions
    SET status = new.status, is_busy = new.is_busy, attention_at = nullif(new.attention_at, -1e17)
    WHERE run_key = new.run_key
        AND (attention_at IS NOT nullif(new.attention_at, -1e17) OR is_busy <> new.is_busy
            OR status <> new.status);
    INSERT INTO history (shard, run_key, first_event_id, last_event_id, events)
    SELECT new.shard, new.run_key, new.first_event_id, new.last_event_id, CAST(new.events AS TEXT)
    WHERE new.first_event_id IS NOT NULL;
END;

CREATE TEMP TRIGGER clew_update_closed INSTEAD OF INSERT ON clew_write
WHEN new.version > 0 AND new.is_open = 0 AND typeof(new.namespace) <> 'text'
BEGIN
    UPDATE executions
    SET version = new.version, status = new.status, is_busy = new.is_busy,
        attention_at = nullif(new.attention_at, -1e17),
        history_length = new.history_length, history_size_bytes = new.history_size_bytes, state = new.state, is_open = 0
    WHERE run_key = new.run_key AND version = new.expected_version AND shard = new.shard;
    SELECT raise(ABORT, 'version_conflict') WHERE changes() <> 1;
    INSERT INTO history (shard, run_key, first_event_id, last_event_id, events)
    SELECT new.shard, new.run_key, new.first_event_id, new.last_event_id, CAST(new.events AS TEXT)
    WHERE new.first_event_id IS NOT NULL;
END;

-- What is searched for is written anew by whoever writes the row, after it.
CREATE TEMP TRIGGER clew_put_update INSTEAD OF INSERT ON clew_write
WHEN new.expected_version > 0 AND typeof(new.namespace) = 'text'
BEGIN
    UPDATE executions
    SET version = new.version, status = new.status, is_busy = new.is_busy,
        attention_at = nullif(new.attention_at, -1e17),
        history_length = new.history_length, history_size_bytes = new.history_size_bytes, state = new.state,
        is_open = new.is_open, workflow_type = new.workflow_type, task_queue = new.task_queue,
        start_time = new.start_time, execution_time = new.execution_time, close_time = nullif(new.close_time, -1e17),
        first_execution_run_id = new.first_execution_run_id, parent_workflow_id = new.parent_workflow_id,
        parent_run_id = new.parent_run_id, root_workflow_id = new.root_workflow_id, root_run_id = new.root_run_id,
        memo = nullif(new.memo, ''), search_attributes = nullif(new.search_attributes, '')
    WHERE run_key = new.run_key AND version = new.expected_version AND shard = new.shard;
    SELECT raise(ABORT, 'version_conflict') WHERE changes() <> 1;
    DELETE FROM search_attributes WHERE run_key = new.run_key;
    INSERT INTO history (shard, run_key, first_event_id, last_event_id, events)
    SELECT new.shard, new.run_key, new.first_event_id, new.last_event_id, CAST(new.events AS TEXT)
    WHERE new.first_event_id IS NOT NULL;
END;

CREATE TEMP TRIGGER clew_put_insert INSTEAD OF INSERT ON clew_write
WHEN new.version > 0 AND new.expected_version = 0
BEGIN
    SELECT raise(ABORT, 'latest_run_conflict')
    WHERE new.expected_latest_run_key <> coalesce((SELECT max(run_key)
                                                   FROM executions
                                                   WHERE namespace = new.namespace AND workflow_id = new.workflow_id), 0);
    INSERT INTO executions (run_key, shard, version, status, is_open, is_busy, attention_at, history_length,
                            history_size_bytes, namespace, workflow_id, run_id, workflow_type, task_queue, start_time,
                            execution_time, close_time, first_execution_run_id, parent_workflow_id, parent_run_id,
                            root_workflow_id, root_run_id, memo, search_attributes, state)
    VALUES (new.run_key, new.shard, new.version, new.status, new.is_open, new.is_busy, nullif(new.attention_at, -1e17),
            new.history_length, new.history_size_bytes, new.namespace, new.workflow_id, new.run_id, new.workflow_type,
            new.task_queue, new.start_time, new.execution_time, nullif(new.close_time, -1e17), new.first_execution_run_id,
            new.parent_workflow_id, new.parent_run_id, new.root_workflow_id, new.root_run_id, nullif(new.memo, ''),
            nullif(new.search_attributes, ''), new.state);
    INSERT INTO history (shard, run_key, first_event_id, last_event_id, events)
    SELECT new.shard, new.run_key, new.first_event_id, new.last_event_id, CAST(new.events AS TEXT)
    WHERE new.first_event_id IS NOT NULL;
END;
