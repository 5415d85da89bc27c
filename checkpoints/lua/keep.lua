-- Keep a blob beside a run, once.
-- KEYS     1 head   2 blobs
-- ARGV     1 name of the blob   2 bytes   3 how long blobs of a run that is not there are kept, in ms
-- Returns  {OK}; {FOREIGN, key}
-- Blobs come before the run that speaks of them, which may never come: create.lua takes the end away.
local bad = foreign({'hash', 'hash'})
if bad then return {'FOREIGN', bad} end
redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2])
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('PEXPIRE', KEYS[2], ARGV[3]) end
return {'OK'}
