-- Bring a file of layout 1 to layout 2: the same tables and rows, under the names of schema.sql.

ALTER TABLE place RENAME TO storage;
ALTER TABLE storage RENAME COLUMN one TO singleton;
ALTER TABLE queues RENAME COLUMN gone TO removal;
ALTER TABLE queues RENAME COLUMN log_size TO log_bytes;
ALTER TABLE slots RENAME COLUMN asked TO cancel_requested;
ALTER TABLE slots RENAME COLUMN ended TO outcome;
ALTER TABLE slots RENAME COLUMN changed TO ending;
ALTER TABLE request_keys RENAME COLUMN answer TO result;
