-- The files of a data directory, and what changes them. See postgres.py beside this file.
-- Every statement may be repeated. Names of files are bytes, as they are on a file system.

CREATE TABLE IF NOT EXISTS journeyman_directory (
    version  integer NOT NULL,   -- of these tables
    epoch    bigint  NOT NULL,   -- how often the directory has changed hands
    server   text    NOT NULL,   -- the last server: where it listened and ran, as JSON
    is_clean boolean NOT NULL    -- that server has stopped in order
);
INSERT INTO journeyman_directory SELECT 1, 0, '', true
    WHERE NOT EXISTS (SELECT FROM journeyman_directory);

CREATE TABLE IF NOT EXISTS journeyman_file (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- never used again: an inode
    parent   bigint NOT NULL,    -- 0 is the data directory itself
    name     bytea  NOT NULL,
    is_dir   boolean NOT NULL,
    modified timestamptz NOT NULL DEFAULT now(),
    gone     timestamptz         -- removed or replaced; readers may still have it open
);
CREATE UNIQUE INDEX IF NOT EXISTS journeyman_file_name ON journeyman_file (parent, name)
    WHERE gone IS NULL;

CREATE TABLE IF NOT EXISTS journeyman_bytes (
    file    bigint NOT NULL,
    at      bigint NOT NULL,
    data    bytea  NOT NULL,
    written timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (file, at)
);
-- A part of a piece is read without the rest of it, and a small batch stays in its row.
ALTER TABLE journeyman_bytes ALTER COLUMN data SET STORAGE EXTERNAL;
ALTER TABLE journeyman_bytes SET (toast_tuple_target = 8160);

-- The key of this directory's advisory locks: every schema of every database has its own.
CREATE OR REPLACE FUNCTION journeyman_key() RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT ('journeyman_directory'::regclass::oid::bigint & 2147483647)::integer
$$;

-- Before every change. A takeover holds the same lock alone while it raises the epoch, so a server
-- that was replaced cannot commit anything, whether it knows that or not.
CREATE OR REPLACE FUNCTION journeyman_fence(own bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7237, journeyman_key());
    IF own <> (SELECT epoch FROM journeyman_directory) THEN
        RAISE EXCEPTION 'another server has taken over' USING ERRCODE = 'JM001';
    END IF;
END $$;

-- Each piece goes where its file ends. One that is there already was committed by a call whose
-- answer was lost; touching it lets this commit wait for a synchronous replica as that one did.
CREATE OR REPLACE FUNCTION journeyman_append(
    own bigint, files bigint[], places bigint[], pieces bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    file_end bigint;
BEGIN
    PERFORM journeyman_fence(own);
    FOR i IN 1 .. cardinality(files) LOOP
        SELECT b.at + octet_length(b.data) INTO file_end FROM journeyman_bytes b
            WHERE b.file = files[i] ORDER BY b.at DESC LIMIT 1;
        IF file_end IS NULL AND NOT EXISTS (SELECT FROM journeyman_file WHERE id = files[i]) THEN
            RAISE EXCEPTION 'file % does not exist any more', files[i] USING ERRCODE = 'JM002';
        END IF;
        IF coalesce(file_end, 0) = places[i] THEN
            INSERT INTO journeyman_bytes (file, at, data) VALUES (files[i], places[i], pieces[i]);
        ELSE
            UPDATE journeyman_bytes b SET written = now()
                WHERE b.file = files[i] AND b.at = places[i] AND b.data = pieces[i];
            IF NOT FOUND THEN
                RAISE EXCEPTION 'file % ends at byte %, not at byte %',
                    files[i], coalesce(file_end, 0), places[i] USING ERRCODE = 'JM002';
            END IF;
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION journeyman_cut(own bigint, cut bigint, size bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM journeyman_fence(own);
    UPDATE journeyman_file SET modified = now() WHERE id = cut;
    DELETE FROM journeyman_bytes b WHERE b.file = cut AND b.at >= size;
    UPDATE journeyman_bytes b SET data = substring(b.data FROM 1 FOR (size - b.at)::integer)
        WHERE b.file = cut AND b.at = (SELECT max(c.at) FROM journeyman_bytes c WHERE c.file = cut)
        AND b.at + octet_length(b.data) > size;
END $$;

-- The file or directory of this name, made if it is missing; and where the file ends.
CREATE OR REPLACE FUNCTION journeyman_make(
    own bigint, above bigint, its_name bytea, as_dir boolean,
    OUT made bigint, OUT made_dir boolean, OUT size bigint
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM journeyman_fence(own);
    INSERT INTO journeyman_file (parent, name, is_dir) VALUES (above, its_name, as_dir)
        ON CONFLICT (parent, name) WHERE gone IS NULL DO NOTHING;
    SELECT f.id, f.is_dir INTO made, made_dir FROM journeyman_file f
        WHERE f.parent = above AND f.name = its_name AND f.gone IS NULL;
    size := journeyman_size(made);
END $$;

CREATE OR REPLACE FUNCTION journeyman_size(measured bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT b.at + octet_length(b.data) FROM journeyman_bytes b
        WHERE b.file = measured ORDER BY b.at DESC LIMIT 1), 0)
$$;

CREATE OR REPLACE FUNCTION journeyman_rename(own bigint, moved bigint, above bigint, new_name bytea)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM journeyman_fence(own);
    UPDATE journeyman_file SET gone = clock_timestamp()
        WHERE parent = above AND name = new_name AND gone IS NULL AND id <> moved;
    UPDATE journeyman_file SET parent = above, name = new_name WHERE id = moved;
END $$;

CREATE OR REPLACE FUNCTION journeyman_rename_to_root(own bigint, moved bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM journeyman_fence(own);
    UPDATE journeyman_file SET parent = 0 WHERE parent = moved;
    DELETE FROM journeyman_file WHERE id = moved;
END $$;

CREATE OR REPLACE FUNCTION journeyman_remove(own bigint, removed bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM journeyman_fence(own);
    UPDATE journeyman_file SET gone = clock_timestamp() WHERE id = removed AND gone IS NULL;
END $$;

-- The new server has the directory's lock; when this returns, no other one can write.
CREATE OR REPLACE FUNCTION journeyman_take(new_server text, OUT own bigint, OUT was_clean boolean,
    OUT last_server text
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7237, journeyman_key());
    SELECT d.is_clean, d.server INTO was_clean, last_server FROM journeyman_directory d;
    UPDATE journeyman_directory d SET epoch = d.epoch + 1, server = new_server, is_clean = false
        RETURNING d.epoch INTO own;
END $$;
