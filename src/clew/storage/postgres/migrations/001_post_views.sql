-- Views for people with a plain SQL shell. Nothing in the engine reads them.

CREATE VIEW clew_executions AS
SELECT namespace,
       workflow_id,
       run_id,
       workflow_type,
       status,
       task_queue,
       timestamptz 'epoch' + start_time * interval '1 microsecond'   AS start_time,
       timestamptz 'epoch' + close_time * interval '1 microsecond'   AS close_time,
       timestamptz 'epoch' + attention_at * interval '1 microsecond' AS attention_at,
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
       (event.value ->> 'event_id')::bigint AS event_id,
       event.value ->> 'type'               AS event_type,
       event.value ->> 'event_time'         AS event_time,
       event.value                          AS event
FROM executions AS run
         JOIN history AS batch ON batch.shard = run.shard AND batch.run_key = run.run_key
         CROSS JOIN LATERAL json_array_elements(convert_from(batch.events, 'UTF8')::json) AS event;
