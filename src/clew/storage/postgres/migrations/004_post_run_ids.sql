-- Replaced by executions_by_run_id.
DROP INDEX executions_run_id;
