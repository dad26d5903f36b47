-- Queries for opening a storage: the server's settings, and the layout of the schema.

-- name: server
-- Returns one row about the server and this session. Behind a pooler, the pid differs from the pid that the driver
-- got when it connected.
SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
       current_setting('server_encoding'), pg_backend_pid(), current_setting('synchronous_commit'),
       current_setting('fsync'), current_setting('default_transaction_isolation'), pg_is_in_recovery()

-- name: diagnosis
-- Returns one row about the settings and sessions of the server. Sessions of other roles have no state for a role
-- without pg_read_all_stats, so their idle transactions are not seen.
SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
       (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'),
       (SELECT extract(epoch FROM max(now() - xact_start)) FROM pg_catalog.pg_stat_activity
        WHERE starts_with(state, 'idle in transaction')),
       current_setting('autovacuum')

-- name: known
-- Returns whether the schema %(schema)s exists, and whether the table `migrations` exists in it. Why not to_regclass: it
-- caches a negative answer from before this session waited for another one.
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s), EXISTS (
    SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = 'migrations')

-- name: strangers
-- Returns a row for each role that may put code into the schema %(schema)s and that this session need not trust: how, and
-- the name of the role. A session trusts itself, the roles that it is a member of, the roles that may act as it (superusers
-- too), and the owner of the database, who may replace any schema in it. The memberships are read from their table,
-- because for a superuser pg_has_role() says that it is a member of each role.
WITH RECURSIVE place AS (
    SELECT oid, nspowner, nspacl FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s
), mine (role) AS (
    SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user
    UNION SELECT m.roleid FROM pg_catalog.pg_auth_members m JOIN mine ON m.member = mine.role
), held (how, role) AS (
    SELECT 'owns the schema', nspowner FROM place
    UNION SELECT 'may create functions in the schema', a.grantee
    FROM place, pg_catalog.aclexplode(nspacl) a WHERE a.privilege_type = 'CREATE'
    UNION SELECT 'owns a table in the schema', relowner FROM pg_catalog.pg_class WHERE relnamespace = (SELECT oid FROM place)
    UNION SELECT 'owns a function in the schema', proowner FROM pg_catalog.pg_proc WHERE pronamespace = (SELECT oid FROM place)
)
SELECT h.how, coalesce(r.rolname, 'PUBLIC') FROM held h LEFT JOIN pg_catalog.pg_roles r ON r.oid = h.role
WHERE h.role NOT IN (SELECT role FROM mine) AND r.rolname IS DISTINCT FROM 'pg_database_owner'
  AND h.role <> (SELECT datdba FROM pg_catalog.pg_database WHERE datname = current_database())
  AND (r.oid IS NULL OR NOT pg_has_role(r.oid, current_user, 'MEMBER'))
ORDER BY h.how DESC

-- name: applied
-- Returns the number of the latest migration and the hash of the functions; no row before the first migration.
SELECT number, functions FROM {schema}.migrations ORDER BY number DESC LIMIT 1

-- name: identity
-- Returns a text that identifies this schema: its database, and the time of its first migration in us. A database that
-- was made from this one as a template has another name. joined() in functions/enqueue.sql compares it.
SELECT current_database() || ' ' || (extract(epoch FROM min(applied_at)) * 1000000)::bigint FROM {schema}.migrations

-- name: unlimited
-- Ends the time limits of the role for this transaction: a migration takes longer than a statement of an application may.
SELECT set_config(name, '0', true) FROM pg_catalog.pg_settings
WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')

-- name: lock
-- Takes the lock under which one process at a time migrates, until the end of the transaction. Readers do not wait for it.
-- Why not an advisory lock: any role that may connect can hold one.
LOCK TABLE {schema}.migrations IN EXCLUSIVE MODE

-- name: create_schema
CREATE SCHEMA {schema}

-- name: enter
-- Sets the search path, for this transaction only, because behind a pooler another client may get this session next.
SET LOCAL search_path = {schema}, pg_temp

-- name: unchecked
-- Lets a function name another one that is created after it.
SET LOCAL check_function_bodies = off

-- name: applied_now
INSERT INTO {schema}.migrations (number, name) VALUES (%(number)s, %(name)s)

-- name: functions_now
-- Writes the hash of the functions that the schema has now.
UPDATE {schema}.migrations SET functions = %(hash)s WHERE number = (SELECT max(number) FROM {schema}.migrations)

-- name: grants
-- Returns a row for each right on a function that its owner granted to others: the name of the function, and a statement
-- that grants it again.
SELECT p.proname::text, format('GRANT EXECUTE ON FUNCTION %%I.%%I TO %%s%%s', n.nspname, p.proname,
              CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
              CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace,
     LATERAL aclexplode(p.proacl) a
WHERE n.nspname = %(schema)s AND a.grantee <> p.proowner

-- name: functions
SELECT proname::text FROM pg_catalog.pg_proc WHERE pronamespace = (
    SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)

-- name: lock_holders
-- Returns sessions of open transactions with locks on rows of `live`, the oldest first: pid, application_name, state, and
-- its seconds. A session that waits for a lock itself is left out. Other columns, as the query, may hold secrets.
SELECT a.pid, coalesce(a.application_name, ''), coalesce(a.state, 'state unknown'),
       coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.state_change, a.xact_start)), 0)::float8
FROM pg_catalog.pg_stat_activity a
WHERE a.pid <> pg_backend_pid() AND a.wait_event_type IS DISTINCT FROM 'Lock' AND a.pid IN (
    SELECT l.pid FROM pg_catalog.pg_locks l
    WHERE l.locktype = 'relation' AND l.mode IN ('RowExclusiveLock', 'RowShareLock') AND l.granted
      AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
      AND l.relation = (SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                        WHERE n.nspname = %(schema)s AND c.relname = 'live'))
ORDER BY a.xact_start LIMIT %(most)s

-- name: vacuum
-- Removes the dead index entries of claimed jobs, unless another session is vacuuming. Cannot run in a transaction.
-- Without a parallel worker: the start of its process takes a third of the vacuum of a table with 20,000 jobs.
VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE OFF, PARALLEL 0) {schema}.live

-- name: live_rows
-- Returns the number of rows of `live` in %(schema)s at the last VACUUM or ANALYZE, -1 before the first, and the number
-- of its dead rows.
SELECT c.reltuples::float8, pg_catalog.pg_stat_get_dead_tuples(c.oid)::float8 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = 'live'
