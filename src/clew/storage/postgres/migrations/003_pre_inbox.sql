-- What programs and triggers ask for inside their own transactions: it is there if and only if they commit. An engine takes
-- the rows in order and does what they say; the request id makes doing it twice harmless. `failed` says why one cannot be.
CREATE TABLE inbox (
    inbox_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text COLLATE "C" NOT NULL CHECK (kind IN ('start', 'signal')),
    request    text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    failed     text
);
CREATE INDEX inbox_waiting ON inbox (inbox_id) WHERE failed IS NULL;
ALTER TABLE inbox SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Callers need USAGE of the schema and nothing else. NOTIFY costs their commit a moment; without it a request would wait
-- for the next look.
DO $make$
BEGIN
    EXECUTE format($body$
CREATE FUNCTION enqueue(kind text, request text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = %1$I, pg_temp AS $$
BEGIN
    INSERT INTO inbox (kind, request) VALUES (enqueue.kind, enqueue.request);
    PERFORM pg_notify(%2$L, '');
END;
$$;

CREATE FUNCTION start_workflow(
    workflow_id text,
    workflow_type text,
    task_queue text,
    input json DEFAULT '[]',
    namespace text DEFAULT 'default',
    request_id text DEFAULT gen_random_uuid()::text
) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = %1$I, pg_temp AS $$
    SELECT enqueue('start', json_build_object(
        'namespace', namespace, 'workflow_id', workflow_id, 'workflow_type', workflow_type,
        'task_queue', task_queue, 'request_id', request_id, 'input', input, 'identity', 'sql')::text);
$$;

CREATE FUNCTION signal_workflow(
    workflow_id text,
    signal_name text,
    input json DEFAULT '[]',
    namespace text DEFAULT 'default',
    run_id text DEFAULT '',
    request_id text DEFAULT gen_random_uuid()::text
) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = %1$I, pg_temp AS $$
    SELECT enqueue('signal', json_build_object(
        'namespace', namespace, 'workflow_id', workflow_id, 'signal_name', signal_name, 'run_id', run_id,
        'request_id', request_id, 'input', input, 'identity', 'sql')::text);
$$;
$body$, current_schema(), 'clew_inbox_' || current_schema());
END;
$make$;
