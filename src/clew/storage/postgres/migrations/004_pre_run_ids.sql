-- A look-up by run key must never take the index on run ids: both begin with the shard, and while a table is empty they
-- cost the same, so a plan made then might read all runs of a shard at each step. A look-up by run id says the condition
-- below; no other statement does.
CREATE UNIQUE INDEX executions_by_run_id ON executions (shard, run_id) WHERE run_id <> '';
