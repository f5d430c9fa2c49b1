-- The trigger looked whether a record refers to the account, before its transaction committed. A record that was judged in between was the
-- first to refer to it: neither saw the other, and the reference never became dangling, or stayed so. Now the job looks, after the commit.

CREATE OR REPLACE FUNCTION judge_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A judgment under way looks at its targets once more after its commit. So either it sees this change, or the job sees its rows.
    -- Without the projection no worker knows the job.
    IF EXISTS (SELECT FROM projections AS l WHERE l.name = 'lexicon') THEN
        PERFORM enqueue_job('judge_account', 'process', jsonb_build_object('did', NEW.did), ARRAY['lexicon']);
    END IF;
    RETURN NULL;
END $$;
