-- Before anything else: what server this is, and what stands in the schema.

-- name: server
-- -> one row on the server and this session; the pid differs from the one the driver was told when a pooler
-- stands between.
SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
       current_setting('server_encoding'), pg_backend_pid(), current_setting('synchronous_commit'),
       current_setting('fsync'), current_setting('default_transaction_isolation'), pg_is_in_recovery()

-- name: known
-- schema -> whether the table of migrations is there. Not by to_regclass: it remembers a no from before the lock.
SELECT EXISTS (
    SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = 'migrations')

-- name: applied
-- -> the number of the latest migration; NULL before the first.
SELECT max(number) FROM {schema}.migrations

-- name: lock
-- One process at a time migrates; the lock goes with the transaction.
SELECT pg_advisory_xact_lock({migration_lock})

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS {schema}

-- name: enter
-- For the migrations of this transaction only: a pooler may hand the session to somebody else afterwards.
SET LOCAL search_path = {schema}, pg_temp

-- name: applied_now
INSERT INTO {schema}.migrations (number, name) VALUES (%(number)s, %(name)s)

-- name: sweep
-- Remove the dead entries from the line; left to others when one of them is at it. Not in a transaction.
VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE OFF) {schema}.live
