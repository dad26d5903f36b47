-- Bring a file of layout 2 to layout 3: the lead of a clock that was ahead once.

ALTER TABLE storage ADD COLUMN lead INTEGER NOT NULL DEFAULT 0;
