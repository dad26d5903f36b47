-- A clock that was ahead once does not stop the time. The storage keeps a lead: the ms by which its time is ahead of the
-- server's clock, 0 for a right clock. src/dibs/storage/clock.py has the same rule.

CREATE SEQUENCE lead AS bigint MINVALUE 0 START 0;

-- change_lead() -> the lead that tick() adds to the server's clock from now on. The lock prevents two calls from setting
-- it twice. Under the lock the clock is read after `seen`: a call that was suspended between the two would take the time
-- of other calls for a step of the clock. The lock is released at once, like that of raise_numbers(). A standby server
-- cannot store the lead.
CREATE FUNCTION change_lead() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    latest bigint;
    stored bigint;
    wanted bigint;
    clock_ms bigint;
BEGIN
    IF pg_is_in_recovery() THEN
        RETURN (SELECT last_value FROM {name}.lead);
    END IF;
    PERFORM pg_advisory_lock({lock});
    SELECT s.last_value, l.last_value INTO latest, stored FROM {name}.seen s, {name}.lead l;
    clock_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
    wanted := CASE
        WHEN clock_ms >= latest - 1000 THEN 0
        WHEN clock_ms + stored < latest - 1000 THEN latest - clock_ms
        ELSE stored END;
    IF wanted <> stored THEN
        PERFORM setval('{name_text}.lead', wanted);
    END IF;
    PERFORM pg_advisory_unlock({lock});
    IF wanted > stored THEN
        RAISE WARNING 'dibs: the time of the schema % is % ms ahead of the clock of this server: the clock was ahead '
            'once, or was set back. Time goes on from there.', '{name_text}', wanted;
    END IF;
    RETURN wanted;
EXCEPTION WHEN OTHERS OR query_canceled THEN
    PERFORM pg_advisory_unlock({lock});
    RAISE;
END $$;

-- tick(manual) -> the current time in ms, never before an earlier result: the server's clock plus the lead, or a manual
-- time. Afterwards nextval('numbers') is at least this time in us. A clock that steps back by up to a second gets no
-- lead: the time stands still until the clock has caught up, because a lead for each small step of NTP would add up. Such
-- a step can show for up to 50 ms, because `seen` is only written every 50 ms. The numbers run up to a second ahead of
-- the time, so that they are raised about once a second instead of at each call. Plain SQL calls this function, too, so
-- it names its schema. On a standby it writes nothing. Every verb starts here, so one SELECT reads all three sequences.
CREATE OR REPLACE FUNCTION tick(manual bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    latest bigint;
    drawn bigint;
    lead_ms bigint;
    now_ms bigint := coalesce(manual, floor(extract(epoch FROM clock_timestamp()) * 1000));
BEGIN
    SELECT s.last_value, n.last_value, l.last_value INTO latest, drawn, lead_ms
    FROM {name}.seen s, {name}.numbers n, {name}.lead l;
    IF manual IS NULL AND (lead_ms <> 0 OR now_ms < latest - 1000) THEN
        IF now_ms >= latest - 1000 OR now_ms + lead_ms < latest - 1000 THEN
            lead_ms := {name}.change_lead();
        END IF;
        now_ms := now_ms + lead_ms;
    END IF;
    -- setval writes WAL, so it runs at most 20 times a second; that is enough to detect a clock that was set back.
    IF now_ms > latest + (CASE WHEN manual IS NULL THEN 50 ELSE 0 END) AND NOT pg_is_in_recovery() THEN
        PERFORM setval('{name_text}.seen', now_ms);
    END IF;
    now_ms := greatest(now_ms, latest);
    IF drawn < now_ms * 1000 AND NOT pg_is_in_recovery() THEN
        PERFORM {name}.raise_numbers(now_ms * 1000 + 1000000);
    END IF;
    RETURN now_ms;
END $$;
