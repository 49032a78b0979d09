-- Views for people with a plain SQLite shell. Nothing in the engine reads them.

CREATE VIEW clew_executions AS
SELECT namespace,
       workflow_id,
       run_id,
       workflow_type,
       status,
       task_queue,
       strftime('%Y-%m-%dT%H:%M:%fZ', start_time / 1000000.0, 'unixepoch') AS start_time,
       strftime('%Y-%m-%dT%H:%M:%fZ', close_time / 1000000.0, 'unixepoch') AS close_time,
       strftime('%Y-%m-%dT%H:%M:%fZ', attention_at / 1000000.0, 'unixepoch') AS attention_at,
       history_length,
       history_size_bytes,
       memo,
       search_attributes,
       parent_workflow_id,
       parent_run_id,
       shard,
       run_key,
       version
FROM executions;

CREATE VIEW clew_events AS
SELECT run.namespace,
       run.workflow_id,
       run.run_id,
       json_extract(event.value, '$.event_id') AS event_id,
       json_extract(event.value, '$.type') AS event_type,
       json_extract(event.value, '$.event_time') AS event_time,
       json_remove(event.value, '$.event_id', '$.type', '$.event_time') AS attributes
FROM executions AS run
         JOIN history AS batch ON batch.shard = run.shard AND batch.run_key = run.run_key
         JOIN json_each(batch.events) AS event;
